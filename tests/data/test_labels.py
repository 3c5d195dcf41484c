from __future__ import annotations

import numpy as np
import pytest

from xnorpp.data import DatasetError, as_dataset, match_classes
from xnorpp.data.labels import by_position, in_order_of

IMAGES = np.zeros((3, 2, 2, 1), np.uint8)


def test_classes_are_matched_by_name() -> None:
    assert match_classes(["stripe", "noise", "circle"], ["circle", "noise", "stripe"]).tolist() == [2, 1, 0]
    assert match_classes(["a", "b"], ["a", "b"]).tolist() == [0, 1]
    assert match_classes(None, ["x", "y"]).tolist() == [0, 1]
    assert match_classes(["c", "b", "a"], ["a", "c"]).tolist() == [2, 0]  # a part of the model's classes


def test_equal_lists_may_name_a_class_twice() -> None:
    assert match_classes(["crane", "crane"], ["crane", "crane"]).tolist() == [0, 1]
    with pytest.raises(DatasetError, match="several classes named 'crane'"):
        match_classes(["crane", "crane", "dog"], ["dog", "crane", "crane"])


def test_other_names_are_refused() -> None:
    with pytest.raises(DatasetError) as caught:
        match_classes(list("0123456789"), ["airplane", "bird"], dataset="cifar10")
    assert "the model's classes (0, 1, 2, ... 10 in all) are not those of data set 'cifar10'" in str(
        caught.value
    )
    assert "does not know 'airplane'" in str(caught.value)


@pytest.mark.parametrize("indexed", [False, True])
def test_a_data_set_in_the_order_of_a_model(indexed: bool) -> None:
    pair = (IMAGES, np.array([0, 1, 1]))
    data = [(image, int(label)) for image, label in zip(*pair)] if indexed else pair
    dataset = as_dataset(data, classes=["cat", "dog"])
    ordered = in_order_of(dataset, ["dog", "owl", "cat"])
    assert ordered.classes == ("dog", "owl", "cat")
    if indexed:
        from xnorpp.data import make_loader

        labels = next(iter(make_loader(ordered, batch_size=3, train=False).epoch(0)))[1].numpy()
    else:
        labels = ordered.labels
    assert labels.tolist() == [2, 0, 0]
    assert in_order_of(dataset, None) is dataset
    assert by_position(dataset, ["Katze", "Hund"]).classes == ("Katze", "Hund")
    with pytest.raises(DatasetError, match="the model has 3 classes and data set 'own' 2"):
        by_position(dataset, ["a", "b", "c"])
