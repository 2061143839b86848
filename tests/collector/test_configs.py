"""The configurations of `collector/`: the Collector takes them, and each keeps what its door promises."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
import yaml

from helpers.servers.collector import CONFIGS, validate

DURABLE = ("gateway.yaml", "agent.yaml", "loadbalancing.yaml")
DOORS = (*DURABLE, "gateway-sync.yaml")
LAYERS = (
    *((name,) for name in DOORS),
    ("gateway.yaml", "tokens.yaml"),
    ("gateway.yaml", "tls.yaml"),
    ("gateway.yaml", "tokens.yaml", "tls.yaml"),
    ("gateway-sync.yaml", "tokens-sync.yaml"),
    ("gateway-sync.yaml", "tokens-sync.yaml", "tls.yaml"),
)
SETTING = re.compile(r"\$\{env:(\w+)(?::-([^}]*))?\}")
# Of the exporter's kind, name and signal the queue's file has its name: a change orphans every backlog in the field.
EXPORTERS = {
    "gateway.yaml": {"otlp_http/legato"},
    "gateway-sync.yaml": {"otlp_http/legato"},
    "agent.yaml": {"otlp_http/gateway"},
    "loadbalancing.yaml": {"load_balancing/gateways", "load_balancing/samples"},
}
KINDS = {
    "bearertokenauth": "extension/bearertokenauthextension",
    "headers_setter": "extension/headerssetterextension",
    "health_check": "extension/healthcheckextension",
    "file_storage": "extension/storage/filestorage",
    "otlp": "receiver/otlpreceiver",
    "memory_limiter": "processor/memorylimiterprocessor",
    "otlp_http": "exporter/otlphttpexporter",
    "load_balancing": "exporter/loadbalancingexporter",
}


def config(name: str, **settings: str) -> dict[str, Any]:
    """A configuration as the Collector reads it, with settings at their defaults or as given."""
    text = (CONFIGS / name).read_text(encoding="utf-8")
    return dict(yaml.safe_load(SETTING.sub(lambda match: settings.get(match.group(1), match.group(2) or "unset"), text)))


@pytest.fixture
def needed(tmp_path: pathlib.Path) -> dict[str, str]:
    """Settings without a default."""
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    return {
        "LEGATO_COLLECTOR_TOKENS_FILE": str(tokens),
        "LEGATO_TOKEN_FILE": str(tokens),
        "LEGATO_COLLECTOR_CERT_FILE": "/etc/legato/tls.crt",
        "LEGATO_COLLECTOR_KEY_FILE": "/etc/legato/tls.key",
        "LEGATO_GATEWAYS": "[gateway-a:4317, gateway-b:4317]",
    }


@pytest.mark.parametrize("layers", LAYERS, ids="+".join)
def test_the_collector_takes_it(layers: tuple[str, ...], needed: dict[str, str]) -> None:
    """Each configuration, and each with what may lie on top of it."""
    assert validate(layers, needed) == ""


@pytest.mark.parametrize("name", DOORS)
def test_nothing_is_batched(name: str) -> None:
    """A batch has another body after a restart, and a request that is refused for good takes its neighbours with it."""
    read = config(name)
    assert "batch" not in str(read["processors"])
    for exporter in read["exporters"].values():
        assert "batch" not in exporter.get("sending_queue", {})


@pytest.mark.parametrize("name", DOORS)
def test_memory_is_guarded_first(name: str) -> None:
    """In every pipeline, and by a check that runs (its default never does)."""
    read = config(name)
    assert read["processors"]["memory_limiter"]["check_interval"] == "1s"
    assert all(pipeline["processors"][0] == "memory_limiter" for pipeline in read["service"]["pipelines"].values())


@pytest.mark.parametrize("name", DURABLE)
def test_a_queue_is_on_disk_and_never_given_up(name: str) -> None:
    """Synced, retried without end, refusing when full; no limit on the file, as one that is reached loses what was acknowledged."""
    read = config(name)
    storage = read["extensions"]["file_storage/queue"]
    assert storage["fsync"] is True and "max_size" not in storage
    assert storage["compaction"]["directory"] == storage["directory"]
    for exporter in read["exporters"].values():
        queue, retry = exporter["sending_queue"], exporter["retry_on_failure"]
        assert queue["storage"] == "file_storage/queue" and queue["sizer"] == "bytes" and queue["block_on_overflow"] is False
        assert retry["enabled"] is True and retry["max_elapsed_time"] == "0s"


def test_the_door_without_a_queue_keeps_nothing() -> None:
    """Neither a queue nor a retry stands between the client's 200 and the ingest's."""
    (exporter,) = config("gateway-sync.yaml")["exporters"].values()
    assert exporter["sending_queue"] == {"enabled": False} and exporter["retry_on_failure"] == {"enabled": False}


@pytest.mark.parametrize("name", DOORS)
def test_no_exporter_is_renamed(name: str) -> None:
    """A queue's file is named after its exporter: under another name a backlog would lie there for good."""
    assert set(config(name)["exporters"]) == EXPORTERS[name]


@pytest.mark.parametrize("name", DOORS)
def test_it_listens_on_loopback(name: str) -> None:
    """Every address of a door is of this host; no setting opens one but those that lie on top with tokens."""
    text = (CONFIGS / name).read_text(encoding="utf-8")
    read = config(name)
    doors = [protocol["endpoint"] for protocol in read["receivers"]["otlp"]["protocols"].values()]
    doors.append(read["extensions"]["health_check"]["endpoint"])
    assert all(door.startswith("127.0.0.1:") for door in doors)
    assert "LEGATO_COLLECTOR_HOST" not in text and "0.0.0.0" not in text


@pytest.mark.parametrize("name", ["tokens.yaml", "tokens-sync.yaml"])
def test_what_opens_a_door_wants_a_token_at_it(name: str) -> None:
    """Both protocols check the token, keep it with the request, and the exporter hands it on."""
    read = config(name, LEGATO_COLLECTOR_HOST="0.0.0.0")
    for protocol in read["receivers"]["otlp"]["protocols"].values():
        assert protocol["endpoint"].startswith("0.0.0.0:")
        assert protocol["auth"] == {"authenticator": "bearertokenauth/clients"} and protocol["include_metadata"] is True
    assert read["exporters"]["otlp_http/legato"]["auth"] == {"authenticator": "headers_setter/clients"}


def test_layers_for_both_doors_say_the_same() -> None:
    """tokens-sync.yaml is tokens.yaml but for the queue that the other door has."""
    one, other = config("tokens.yaml"), config("tokens-sync.yaml")
    assert one["service"].pop("extensions").remove("file_storage/queue") is None
    other["service"].pop("extensions")
    assert one == other


def test_every_part_is_built_and_every_built_part_is_used() -> None:
    """The manifest holds what the configurations name, no more and no less."""
    manifest = yaml.safe_load((CONFIGS / "builder.yaml").read_text(encoding="utf-8"))
    rooms = ("extensions", "receivers", "processors", "exporters")
    built = {item["gomod"].split()[0] for room in rooms for item in manifest[room]}
    used = {KINDS[part.partition("/")[0]] for path in CONFIGS.glob("*.yaml") if path.name != "builder.yaml"
            for room in rooms for part in yaml.safe_load(SETTING.sub("1", path.read_text(encoding="utf-8"))).get(room, {})}  # fmt: skip
    assert {each.partition("opentelemetry-collector-contrib/")[2] or each.partition("collector/")[2] for each in built} == used


def test_every_setting_is_in_the_readme() -> None:
    """With its default, where it has one."""
    page = (CONFIGS / "README.md").read_text(encoding="utf-8")
    for path in CONFIGS.glob("*.yaml"):
        for name, default in SETTING.findall(path.read_text(encoding="utf-8")):
            (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
            assert not default or f"`{default}`" in row, f"{path.name}: {name} is {default} there"
