"""The configurations in `collector/`: the Collector accepts each, and each has the settings that its durability and safety need."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
import yaml

from helpers.servers.collector import CONFIGS, validate

DURABLE = ("gateway.yaml", "agent.yaml", "loadbalancing.yaml")
CONFIGURATIONS = (*DURABLE, "gateway-sync.yaml")
LAYERS = (
    *((name,) for name in CONFIGURATIONS),
    ("gateway.yaml", "tokens.yaml"),
    ("gateway.yaml", "tls.yaml"),
    ("gateway.yaml", "tokens.yaml", "tls.yaml"),
    ("gateway-sync.yaml", "tokens-sync.yaml"),
    ("gateway-sync.yaml", "tokens-sync.yaml", "tls.yaml"),
    ("loadbalancing.yaml", "tokens-loadbalancing.yaml"),
    ("loadbalancing.yaml", "tokens-loadbalancing.yaml", "tls.yaml"),
)
# The files that add tokens, each with the file to which it is added.
TOKENS = {"tokens.yaml": "gateway.yaml", "tokens-sync.yaml": "gateway-sync.yaml", "tokens-loadbalancing.yaml": "loadbalancing.yaml"}
SETTING = re.compile(r"\$\{env:(\w+)(?::-([^}]*))?\}")
# The queue's file is named after the exporter's kind, name and signal. A rename orphans the backlog of every installation.
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
    """Parse a configuration as the Collector does; environment settings have their defaults unless given."""
    text = (CONFIGS / name).read_text(encoding="utf-8")
    return dict(yaml.safe_load(SETTING.sub(lambda match: settings.get(match.group(1), match.group(2) or "unset"), text)))


@pytest.fixture
def needed(tmp_path: pathlib.Path) -> dict[str, str]:
    """Values for the settings that have no default."""
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
def test_the_collector_accepts_each_combination(layers: tuple[str, ...], needed: dict[str, str]) -> None:
    """Each configuration alone and with the files that may be added to it."""
    assert validate(layers, needed) == ""


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_nothing_is_batched(name: str) -> None:
    """A batch changes its body after a restart, which defeats deduplication, and one rejected request would drop the others in it."""
    read = config(name)
    assert "batch" not in str(read["processors"])
    for exporter in read["exporters"].values():
        assert "batch" not in exporter.get("sending_queue", {})


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_memory_is_guarded_first(name: str) -> None:
    """The memory limiter is first in every pipeline and checks every second (by default it never checks)."""
    read = config(name)
    assert read["processors"]["memory_limiter"]["check_interval"] == "1s"
    assert all(pipeline["processors"][0] == "memory_limiter" for pipeline in read["service"]["pipelines"].values())


@pytest.mark.parametrize("name", DURABLE)
def test_queues_are_on_disk_and_retried_without_end(name: str) -> None:
    """Queues use fsync, retry without end and reject when full. The file has no size limit: reaching it would lose acknowledged data."""
    read = config(name)
    storage = read["extensions"]["file_storage/queue"]
    assert storage["fsync"] is True and "max_size" not in storage
    assert storage["compaction"]["directory"] == storage["directory"]
    for exporter in read["exporters"].values():
        queue, retry = exporter["sending_queue"], exporter["retry_on_failure"]
        assert queue["storage"] == "file_storage/queue" and queue["sizer"] == "bytes" and queue["block_on_overflow"] is False
        assert retry["enabled"] is True and retry["max_elapsed_time"] == "0s"


def test_the_synchronous_gateway_keeps_nothing() -> None:
    """gateway-sync.yaml has no queue and no retry: the client gets 200 only after the ingest answered 200."""
    (exporter,) = config("gateway-sync.yaml")["exporters"].values()
    assert exporter["sending_queue"] == {"enabled": False} and exporter["retry_on_failure"] == {"enabled": False}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_exporter_is_renamed(name: str) -> None:
    """A queue's file is named after its exporter: after a rename the backlog would never be sent."""
    assert set(config(name)["exporters"]) == EXPORTERS[name]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_it_listens_on_loopback(name: str) -> None:
    """Every listener is on loopback. Only the files that add tokens have a setting for the host."""
    text = (CONFIGS / name).read_text(encoding="utf-8")
    read = config(name)
    listeners = [protocol["endpoint"] for protocol in read["receivers"]["otlp"]["protocols"].values()]
    listeners.append(read["extensions"]["health_check"]["endpoint"])
    assert all(listener.startswith("127.0.0.1:") for listener in listeners)
    assert "LEGATO_COLLECTOR_HOST" not in text and "0.0.0.0" not in text


@pytest.mark.parametrize("name", TOKENS)
def test_remote_listeners_require_a_token(name: str) -> None:
    """Both protocols check the token and keep it with the request; every exporter of the other file passes it on."""
    read, other = config(name, LEGATO_COLLECTOR_HOST="0.0.0.0"), config(TOKENS[name])
    for protocol in read["receivers"]["otlp"]["protocols"].values():
        assert protocol["endpoint"].startswith("0.0.0.0:")
        assert protocol["auth"] == {"authenticator": "bearertokenauth/clients"} and protocol["include_metadata"] is True
    for exporter in other["exporters"]:
        client = read["exporters"][exporter]
        client = client["protocol"]["otlp"] if exporter.startswith("load_balancing") else client
        assert client == {"auth": {"authenticator": "headers_setter/clients"}}
    own = ["bearertokenauth/clients", "headers_setter/clients"]
    assert set(read["exporters"]) == set(other["exporters"]) and read["service"]["extensions"] == other["service"]["extensions"] + own


def test_token_layers_are_equal() -> None:
    """The receivers and the extensions of each file with tokens are those of tokens.yaml."""
    one, *others = ({part: config(name)[part] for part in ("extensions", "receivers")} for name in TOKENS)
    assert all(other == one for other in others)


def test_the_image_has_every_configuration() -> None:
    """The Dockerfile copies each file of this folder except the builder's manifest."""
    (copied,) = re.findall(r"^COPY (?!--from)(.+) /etc/legato/$", (CONFIGS / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(copied.split()) == {path.name for path in CONFIGS.glob("*.yaml")} - {"builder.yaml"}


def test_the_build_has_exactly_the_components_in_use() -> None:
    """The builder's manifest lists the components that the configurations name, no more and no less."""
    manifest = yaml.safe_load((CONFIGS / "builder.yaml").read_text(encoding="utf-8"))
    kinds = ("extensions", "receivers", "processors", "exporters")
    built = {item["gomod"].split()[0] for kind in kinds for item in manifest[kind]}
    used = {KINDS[part.partition("/")[0]] for path in CONFIGS.glob("*.yaml") if path.name != "builder.yaml"
            for kind in kinds for part in yaml.safe_load(SETTING.sub("1", path.read_text(encoding="utf-8"))).get(kind, {})}  # fmt: skip
    assert {each.partition("opentelemetry-collector-contrib/")[2] or each.partition("collector/")[2] for each in built} == used


def test_every_setting_is_in_the_readme() -> None:
    """The table in collector/README.md has each environment setting, with its default if it has one."""
    page = (CONFIGS / "README.md").read_text(encoding="utf-8")
    for path in CONFIGS.glob("*.yaml"):
        for name, default in SETTING.findall(path.read_text(encoding="utf-8")):
            (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
            assert not default or f"`{default}`" in row, f"{path.name}: {name} is {default} there"
