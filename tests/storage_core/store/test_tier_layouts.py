"""Remote storage in layouts that are not read is refused by the product's name."""

import pytest

from storage_core.errors import ConfigError
from storage_core.roots.open_root import find_root
from storage_core.store.tier_archive import Tier
from storage_core.store.tier_layouts import find_layout

TOPIC, OBJECT = "Q67Kf6aES2C_-Js7eDaRuw", "-9twBPT1TWmFRZr_cKeDTA"
CLUSTER = "806a0f4a-e691-4a2b-9352-ec4b769a5e6e"
KEYS = {
    f"0/{OBJECT}/{TOPIC}/1/00000000000000000000_0_v0.segment": "Confluent",
    f"tier/0/{OBJECT}/{TOPIC}/1/00000000000000000420_3_v1.producer-state": "Confluent",
    "50000000/meta/kafka/orders/topic_manifest.json": "Redpanda",
    "a0000000/meta/kafka/orders/0_123/manifest.bin": "Redpanda",
    f"{CLUSTER}/meta/kafka/orders/0_123/manifest.bin": "Redpanda",
    f"meta/kafka/orders/{CLUSTER}/123/topic_manifest.bin": "Redpanda",
    "6fab5988/kafka/orders/0_123/420-1-v1.log.2": "Redpanda",
    "01000000/_kafka_x9Q/16": "AutoMQ",
    "fedcba98765/_kafka_x9Q/382391536639": None,  # 5678..., of another id
    f"{16:08x}/_kafka_x9Q/16": None,  # not backwards
    "warpstream/a1b2/files/x": "WarpStream",
    f"orders/metadata/{TOPIC}.puffin": "Aiven's plugin, as Iceberg tables",
    "orders/metadata/v1.metadata.json": None,
    "orders-0/00000000000000000000.log": None,
    "a0000000/meta/kafka/orders/manifest.bin": None,
    "backup/orders/0_1/420-1-v1.log.2": None,
}


@pytest.mark.parametrize(("key", "product"), KEYS.items())
def test_a_layout_is_known_by_an_objects_name(key, product):
    assert find_layout([key]) == (None if product is None else (product, key))


def test_one_folder_of_that_name_is_not_warpstreams():
    assert find_layout(["warpstream/x", "orders-0/00000000000000000000.log"]) is None
    assert find_layout([]) is None


@pytest.mark.parametrize("key", [key for key, product in KEYS.items() if product is not None])
def test_every_command_that_reads_a_root_refuses_it_by_name(tmp_path, key):
    path = tmp_path / key
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    for root in (tmp_path, f"archive+{tmp_path}"):
        with pytest.raises(ConfigError, match=f"the layout of {KEYS[key]}, as .* shows"):
            find_root(root)


def test_no_tier_is_looked_for_around_a_folder_that_is_no_partitions(tmp_path, monkeypatch):
    looked = []
    find = Tier.partition_folders
    monkeypatch.setattr(
        Tier, "partition_folders", lambda self: looked.append(self.objects.url) or find(self)
    )
    (tmp_path / "tier").mkdir()
    with pytest.raises(ConfigError, match="holds no segment"):
        find_root(f"archive+{tmp_path}/tier")
    assert looked == [f"{tmp_path}/tier"]


def test_commands_that_write_name_it_too(pylog, tmp_path):
    path = tmp_path / "50000000/meta/kafka/orders/topic_manifest.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{}")
    for command in ("cat", "inspect", "verify"):
        words = ["--topic", "orders"] if command == "cat" else []
        result = pylog(command, tmp_path, *words)
        assert result.exit_code == 2
        assert "Redpanda" in result.stderr
