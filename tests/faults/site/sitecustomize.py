"""Imported by every Python process that finds this folder on its path at the start: a build and its workers."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import fault
import poisoned_files

fault.install()
poisoned_files.install()
