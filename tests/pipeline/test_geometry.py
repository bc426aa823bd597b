import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from precompile.errors import RecipeError
from precompile.pipeline.geometry import Geometry, Resizing

functional = pytest.importorskip("torchvision.transforms.functional")

side = st.integers(1, 5000)
small = st.integers(1, 40)


def apply(plan: Resizing, resized: np.ndarray) -> np.ndarray:
    """Box and padding of a plan, on an image that is resized already."""
    assert resized.shape == (plan.height, plan.width)
    top, left, height, width = plan.box
    left_pad, top_pad, right_pad, bottom_pad = plan.padding
    return np.pad(resized[top : top + height, left : left + width], ((top_pad, bottom_pad), (left_pad, right_pad)))


@given(height=side, width=side, size=side)
def test_short_is_torchvisions_resize(height, width, size):
    plan = Geometry(size).plan(height, width)
    assert [plan.height, plan.width] == functional._compute_resized_output_size((height, width), [size])
    assert plan.shape == (plan.height, plan.width)


@given(height=side, width=side, size=side, more=side)
@example(height=1, width=5000, size=1, more=1)
def test_short_with_max_side_is_torchvisions_max_size(height, width, size, more):
    plan = Geometry(size, max_side=size + more).plan(height, width)
    expected = functional._compute_resized_output_size((height, width), [size], max_size=size + more)
    assert [plan.height, plan.width] == [max(1, length) for length in expected]


@given(height=side, width=side, max_side=side)
def test_max_side_alone_only_shrinks(height, width, max_side):
    plan = Geometry(max_side=max_side).plan(height, width)
    if max(height, width) <= max_side:
        assert (plan.height, plan.width) == (height, width)
    else:
        assert max(plan.height, plan.width) == max_side
        assert min(plan.height, plan.width) == max(1, int(max_side * min(height, width) / max(height, width)))


@given(height=small, width=small, crop=small)
def test_crop_is_torchvisions_center_crop(height, width, crop):
    image = np.arange(1, height * width + 1).reshape(height, width)
    expected = functional.center_crop(torch.from_numpy(image)[None], [crop, crop])[0].numpy()
    assert np.array_equal(apply(Geometry(crop=crop).plan(height, width), image), expected)


@given(height=side, width=side, target=st.tuples(side, side))
def test_exact_covers_and_cuts_the_center(height, width, target):
    plan = Geometry(target, "exact").plan(height, width)
    assert plan.shape == target
    assert not plan.is_padded
    assert plan.height == target[0] or plan.width == target[1]
    assert plan.box[:2] == (round((plan.height - target[0]) / 2), round((plan.width - target[1]) / 2))


@given(height=side, width=side, size=side)
def test_exact_square_is_resize_and_center_crop(height, width, size):
    assert Geometry(size, "exact").plan(height, width) == Geometry(size, "short", crop=size).plan(height, width)


@given(height=side, width=side, target=st.tuples(side, side))
def test_pad_keeps_the_whole_image_in_the_center(height, width, target):
    plan = Geometry(target, "pad").plan(height, width)
    left, top, right, bottom = plan.padding
    assert plan.shape == target
    assert plan.box == (0, 0, plan.height, plan.width)
    assert plan.height == target[0] or plan.width == target[1]
    assert 0 <= bottom - top <= 1
    assert 0 <= right - left <= 1


@given(height=side, width=side, target=st.tuples(side, side))
def test_stretch_ignores_the_aspect(height, width, target):
    assert Geometry(target, "stretch").plan(height, width) == Resizing(*target, (0, 0, *target), (0, 0, 0, 0))


@given(height=small, width=small, target=st.tuples(small, small), crop=small)
@example(height=1, width=40, target=(4, 40), crop=1)
def test_crop_of_a_letterbox_cuts_the_padded_image(height, width, target, crop):
    letterbox = Geometry(target, "pad").plan(height, width)
    image = np.arange(1, letterbox.height * letterbox.width + 1).reshape(letterbox.height, letterbox.width)
    expected = functional.center_crop(torch.from_numpy(apply(letterbox, image))[None], [crop, crop])[0].numpy()
    assert np.array_equal(apply(Geometry(target, "pad", crop).plan(height, width), image), expected)


@given(
    geometry=st.sampled_from(
        [
            Geometry(),
            Geometry(7),
            Geometry(7, crop=9),
            Geometry(crop=5),
            Geometry(max_side=9),
            Geometry(8, "pad"),
            Geometry((6, 5), "pad", crop=4),
            Geometry((3, 9), "exact"),
            Geometry((3, 9), "stretch"),
        ]
    ),
    height=small,
    width=small,
)
def test_output_shape_is_what_every_plan_gives(geometry, height, width):
    shape = geometry.plan(height, width).shape
    assert all(known is None or known == got for known, got in zip(geometry.output_shape, shape, strict=True))


def test_output_shape_is_known_when_it_does_not_depend_on_the_image():
    assert Geometry(256, crop=224).output_shape == (224, 224)
    assert Geometry((3, 4), "pad").output_shape == (3, 4)
    assert Geometry(5, "stretch").output_shape == (5, 5)
    assert Geometry(256).output_shape == (None, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size must be at least 1, got size=0"),
        ({"size": (4, 0), "fit": "pad"}, "size must be at least 1, got size=0"),
        ({"crop": 0}, "crop must be at least 1, got crop=0"),
        ({"max_side": -1}, "max_side must be at least 1, got max_side=-1"),
        ({"size": (3, 4)}, "fit=short needs size=N, got size=3x4"),
        ({"fit": "pad"}, "fit=pad needs size=HxW, got no size"),
        ({"fit": "wide"}, "fit must be one of short, exact, pad, stretch, got fit='wide'"),
        ({"size": 3, "fit": "pad", "max_side": 9}, "max_side=9 needs fit=short: fit=pad has a fixed size already"),
    ],
)
def test_wrong_values_are_named(arguments, message):
    with pytest.raises(RecipeError) as error:
        Geometry(**arguments)
    assert str(error.value) == message
