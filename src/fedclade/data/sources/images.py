"""The image data sets: every one becomes uint8 rows (channels, height, width), official training rows first."""

import gzip
import struct
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedclade.data.federation import Dataset
from fedclade.data.sources.mat import load_mat
from fedclade.data.sources.source import LocalCopy, Source

DIGITS = tuple("0123456789")
GARMENTS = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
CIFAR10_NAMES = "airplane automobile bird cat deer dog frog horse ship truck"
CIFAR100_NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
"""


def digits_from_scikit_learn(copy: LocalCopy, form: str) -> Dataset:
    """scikit-learn's 1,797 digits. It has no official test set: every fifth image of each digit is one."""
    package = find_spec("sklearn")  # found, not imported: that takes as long as the run of an example
    assert package is not None
    assert package.submodule_search_locations is not None
    file = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",")
    images, labels = table[:, :-1], table[:, -1].astype(np.int64)
    test = np.zeros(len(labels), bool)
    for digit in range(10):
        test[np.flatnonzero(labels == digit)[4::5]] = True
    order = np.argsort(test, kind="stable")
    x = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    return Dataset("digits", x[order], labels[order].astype(np.int64), int((~test).sum()), DIGITS)


IDX_FILES = tuple(f"{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1"))


def idx_images(copy: LocalCopy, form: str) -> Dataset:
    """MNIST and what copies its format: images and labels in four idx files, gzipped or not."""
    arrays, paths = {}, {}
    for name, path, stream in copy.streams():
        paths[name] = path
        with copy.reading(path):
            arrays[name] = _idx_array(copy, path, stream.read(), dimensions=3 if "images" in name else 1)
    for images, labels in (IDX_FILES[:2], IDX_FILES[2:]):
        if len(arrays[images]) != len(arrays[labels]):
            raise copy.damaged(
                paths[labels], f"it has {len(arrays[labels])} labels for the {len(arrays[images])} images of {images}"
            )
        copy.checked_labels(paths[labels], arrays[labels], 10)
    x, y, x_test, y_test = (arrays[name] for name in IDX_FILES)
    if x.shape[1:] != x_test.shape[1:]:
        raise copy.damaged(paths[IDX_FILES[2]], "its images are of another size than the training images")
    classes = GARMENTS if copy.source.name == "fashion-mnist" else DIGITS
    return _images(copy, [x[:, None], x_test[:, None]], [y, y_test], len(y), classes)


def _idx_array(copy: LocalCopy, path: Path, data: bytes, dimensions: int) -> np.ndarray:
    if data[:2] == b"\x1f\x8b":  # by content, not by name: browsers unpack .gz files and keep the name
        data = gzip.decompress(data)
    magic = int.from_bytes(data[:4], "big")
    if magic != 0x0800 + dimensions:  # 08: unsigned bytes
        raise copy.damaged(path, f"its magic number is {magic}, not {0x0800 + dimensions}")
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    header = 4 + 4 * dimensions
    if len(data) - header != np.prod(shape, dtype=np.int64):
        raise copy.damaged(path, f"it holds {len(data) - header} bytes of {np.prod(shape, dtype=np.int64)}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def cifar_images(copy: LocalCopy, form: str) -> Dataset:
    """CIFAR-10 and CIFAR-100 (fine labels) in their binary form: label bytes, then 3 x 32 x 32 pixels a record."""
    classes = tuple((CIFAR10_NAMES if copy.source.name == "cifar10" else CIFAR100_NAMES).split())
    label_bytes = 1 if copy.source.name == "cifar10" else 2  # CIFAR-100: coarse, then fine
    images: dict[str, np.ndarray] = {}
    labels: dict[str, np.ndarray] = {}
    for name, path, stream in copy.streams():
        with copy.reading(path):
            data = np.frombuffer(stream.read(), np.uint8)
        size = label_bytes + 3072
        if len(data) == 0 or len(data) % size:
            raise copy.damaged(path, f"it holds {len(data)} bytes, which is no whole number of {size}-byte records")
        records = data.reshape(-1, size)
        labels[name] = copy.checked_labels(path, records[:, label_bytes - 1], len(classes))
        images[name] = records[:, label_bytes:].reshape(-1, 3, 32, 32)
    files = copy.source.files
    n_train = sum(len(labels[name]) for name in files[:-1])
    return _images(copy, [images[name] for name in files], [labels[name] for name in files], n_train, classes)


def svhn_images(copy: LocalCopy, form: str) -> Dataset:
    """Street View House Numbers, cropped: MATLAB files with `X` (32, 32, 3, n) and `y` (n, 1), where 10 is digit 0."""
    images, labels = {}, {}
    for name, path, stream in copy.streams():
        with copy.reading(path):
            contents = load_mat(stream.read(), ("X", "y"))
            if "X" not in contents or "y" not in contents:
                raise copy.damaged(path, "it has no variables X and y")
            x, y = contents["X"], np.ravel(contents["y"])
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3):
            raise copy.damaged(path, f"X is {x.dtype} of shape {x.shape}, not uint8 of shape (32, 32, 3, images)")
        if len(y) != x.shape[3] or not np.isin(y, np.arange(1, 11)).all():
            raise copy.damaged(path, f"y must hold a label from 1 to 10 for each of the {x.shape[3]} images")
        images[name], labels[name] = x.transpose(3, 2, 0, 1), y.astype(np.int64) % 10
    train, test = copy.source.files
    return _images(copy, [images[train], images[test]], [labels[train], labels[test]], len(labels[train]), DIGITS)


def _images(
    copy: LocalCopy, x: list[np.ndarray], y: list[np.ndarray], n_train: int, classes: tuple[str, ...]
) -> Dataset:
    pixels = np.concatenate(x, out=np.empty((sum(map(len, x)), *x[0].shape[1:]), np.uint8))
    return Dataset(copy.source.name, pixels, np.concatenate(y).astype(np.int64), n_train, classes)


SOURCES = (
    Source(
        name="digits",
        description="1,797 handwritten digits, 8x8, that come with scikit-learn: nothing to download",
        licence="CC BY 4.0",
        page="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
        read=digits_from_scikit_learn,
        package="sklearn",
    ),
    Source(
        name="mnist",
        description="70,000 handwritten digits, 28x28, 10 classes",
        licence="not stated",
        page="http://yann.lecun.com/exdb/mnist/",
        read=idx_images,
        files=IDX_FILES,
        # The second is where PyTorch keeps the same bytes since the first one turns visitors away.
        addresses=("http://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
        hashes={
            IDX_FILES[0]: "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            IDX_FILES[1]: "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            IDX_FILES[2]: "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            IDX_FILES[3]: "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    Source(
        name="fashion-mnist",
        description="70,000 pictures of clothes, 28x28, 10 classes",
        licence="MIT",
        page="https://github.com/zalandoresearch/fashion-mnist",
        read=idx_images,
        files=IDX_FILES,
        addresses=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        hashes={
            IDX_FILES[0]: "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            IDX_FILES[1]: "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            IDX_FILES[2]: "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            IDX_FILES[3]: "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
    Source(
        name="cifar10",
        description="60,000 colour pictures, 32x32, 10 classes",
        licence="not stated",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        read=cifar_images,
        files=(*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"),
        addresses=("https://www.cs.toronto.edu/~kriz/",),
        archive="cifar-10-binary.tar.gz",
        unpacks_to=("cifar-10-batches-bin",),
        hashes={
            "cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530",
            "data_batch_1.bin": "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
    ),
    Source(
        name="cifar100",
        description="60,000 colour pictures, 32x32, 100 classes",
        licence="not stated",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        read=cifar_images,
        files=("train.bin", "test.bin"),
        addresses=("https://www.cs.toronto.edu/~kriz/",),
        archive="cifar-100-binary.tar.gz",
        unpacks_to=("cifar-100-binary",),
        hashes={"cifar-100-binary.tar.gz": "md5:03b5dce01913d631647c71ecec9e9cb8"},
    ),
    Source(
        name="svhn",
        description="99,289 house numbers in colour, 32x32, 10 classes",
        licence="non-commercial use",
        page="http://ufldl.stanford.edu/housenumbers/",
        read=svhn_images,
        files=("train_32x32.mat", "test_32x32.mat"),
        addresses=("http://ufldl.stanford.edu/housenumbers/",),
        hashes={
            "train_32x32.mat": "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "md5:eb5a983be6a315427106f1b164d9cef3",
        },
    ),
)
