"""Checks of docker-compose.yml and the Dockerfiles against the repository that need no Docker engine."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest
import yaml

from helpers.repo.repository import ROOT

COMPOSE = ROOT / "docker-compose.yml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
OWN = {name: service for name, service in SERVICES.items() if "build" in service}
WEBHOOK = "LEGATO_ALERT_WEBHOOK"
DOCKERFILES = sorted(path for path in ROOT.glob("*/Dockerfile"))


def dockerfile_of(service: dict[str, Any]) -> tuple[pathlib.Path, pathlib.Path]:
    """A service's Dockerfile and its build context."""
    context = ROOT / service["build"]["context"]
    return context / service["build"].get("dockerfile", "Dockerfile"), context


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_confined(name: str) -> None:
    """Every service has a read-only root file system, no capabilities, no new privileges, limits on memory and CPU, and bounded logs."""
    service = SERVICES[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}
    assert service["logging"]["options"]["max-size"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_is_pinned(name: str) -> None:
    """Every image has a tag with a version and names no registry host."""
    image, _, tag = SERVICES[name]["image"].partition(":")
    assert re.match(r"\d+\.\d+", tag) and "." not in image


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_is_published_beyond_loopback(name: str) -> None:
    """Every port is published on 127.0.0.1 only, and ClickHouse publishes none."""
    ports = SERVICES[name].get("ports", [])
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert name != "clickhouse" or not ports


@pytest.mark.parametrize("name", SERVICES)
def test_every_mount_source_exists(name: str) -> None:
    """Each mount is a read-only file of the repository, a declared volume, or a read-only file that `make up` writes."""
    declared = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["volumes"]
    for mount in SERVICES[name].get("volumes", []):
        source, _, rest = mount.partition(":")
        if source.startswith("./.secrets/"):
            assert rest.endswith(":ro")
        elif source.startswith("."):
            assert (ROOT / source).exists() and rest.endswith(":ro"), mount
        else:
            assert source in declared


@pytest.mark.parametrize("name", OWN)
def test_what_may_change_is_mounted_with_its_folder(name: str) -> None:
    """A mounted file is the one of the container's start for ever: an editor or `git pull` puts a new file in its place on the host."""
    mounts = dict(mount.split(":")[:2] for mount in OWN[name].get("volumes", []))
    own = [source for source in mounts if source.startswith("./") and not source.startswith("./.secrets/")]
    assert all((ROOT / source).is_dir() for source in own)
    for setting, value in OWN[name].get("environment", {}).items():
        if setting.endswith("_FILE"):
            (folder,) = (source for source, target in mounts.items() if value.startswith(f"{target}/"))
            assert folder == "./.secrets/tokens" or (ROOT / folder / value.rpartition("/")[2]).is_file(), setting


def test_every_variable_is_written_by_make_up_or_has_a_default(tmp_path: pathlib.Path) -> None:
    """No password has a default: `make up` writes each one. The alert webhook may be empty."""
    text = COMPOSE.read_text(encoding="utf-8")
    required = set(re.findall(r"\$\{(\w+):\?", text))
    assert required == set(made_in(tmp_path)) - {WEBHOOK} and not re.search(r"\$\{\w*(PASSWORD|TOKEN)\w*:-", text)


def test_every_variable_with_a_default_is_documented() -> None:
    """deploy/README.md lists the ports and other variables that a user may set, with their defaults, and no others."""
    text = COMPOSE.read_text(encoding="utf-8")
    ports = dict(re.findall(r"\$\{(\w+_PORT):-(\d+)\}", text))
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(ports) == len(published) and all(re.match(r"127\.0\.0\.1:\$\{\w+_PORT:-", port) for port in published)
    page = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (?:`(.+?)`|empty) \|", page, re.MULTILINE))
    assert ports.items() <= rows.items() and rows[WEBHOOK] == ""
    assert set(rows) == set(re.findall(r"\$\{(\w+):-", text))


def test_grafana_keeps_its_bundled_data_sources() -> None:
    """It does not try to update them in its read-only folder (grafana/grafana#132528). Its plugins and data are on a volume."""
    grafana = SERVICES["grafana"]
    assert grafana["environment"]["GF_PLUGINS_PREINSTALL_AUTO_UPDATE"] == "false"
    assert "grafana:/var/lib/grafana" in grafana["volumes"] and "grafana/grafana#132528" in COMPOSE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "healthy"),
    [
        ('grafana_plugin_build_info{plugin_id="grafana-clickhouse-datasource",plugin_type="datasource",version="4.20.0"} 1', True),
        ('grafana_plugin_build_info{plugin_id="loki",plugin_type="datasource",version="13.2.0"} 1', False),
        ('plugins_preinstall_total{plugin_id="grafana-clickhouse-datasource",version="4.20.0"} 1', False),
    ],
)
def test_grafana_is_healthy_only_with_the_data_source(page: str, healthy: bool, tmp_path: pathlib.Path) -> None:
    """The plugin is installed before Grafana answers, and the health check finds it among the loaded plugins."""
    grafana = SERVICES["grafana"]
    assert re.fullmatch(r"grafana-clickhouse-datasource@\d+\.\d+\.\d+", grafana["environment"]["GF_PLUGINS_PREINSTALL_SYNC"])
    kind, command = grafana["healthcheck"]["test"]
    wget = tmp_path / "wget"
    wget.write_text(f"#!/bin/sh\ncase \"$*\" in *3000/metrics) echo '{page}';; *3000/api/health) ;; *) exit 1;; esac\n")
    wget.chmod(0o755)
    done = subprocess.run(["sh", "-c", command], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=False)
    assert kind == "CMD-SHELL" and (done.returncode == 0) == healthy


def made_in(folder: pathlib.Path) -> dict[str, str]:
    """Run deploy/make_env.py in a copy of the repository and return the variables that it wrote."""
    for name in ("deploy", "ingest", "dashboards"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "dist"))
    environ = {name: value for name, value in os.environ.items() if name != WEBHOOK}
    command = [sys.executable, str(folder / "deploy" / "make_env.py")]
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL, env=environ)
    return dict(line.split("=", 1) for line in (folder / ".env").read_text().splitlines())


def test_services_wait_for_their_dependencies() -> None:
    """The ingest waits for its store, readers for the ingest. The Collector waits for nothing: it buffers if the ingest is down."""
    conditions = {
        name: {other: how["condition"] for other, how in service.get("depends_on", {}).items()} for name, service in SERVICES.items()
    }
    assert conditions["ingest"] == {"clickhouse": "service_healthy"} and conditions["grafana"] == {"ingest": "service_healthy"}
    assert conditions["collector"] == {}
    for others in conditions.values():
        for other, condition in others.items():
            assert condition != "service_healthy" or has_healthcheck(other), other


def has_healthcheck(name: str) -> bool:
    """Whether the service has a health check in the compose file or in its Dockerfile."""
    return "healthcheck" in SERVICES[name] or (name in OWN and "HEALTHCHECK" in dockerfile_of(OWN[name])[0].read_text())


def test_a_collector_has_time_to_stop() -> None:
    """The grace period exceeds the exporter's time-out, so a request in flight can finish."""
    timeout = re.search(r"otlp_http/legato:.*?timeout: (\d+)s", (ROOT / "collector" / "gateway.yaml").read_text(), re.DOTALL)
    assert timeout and int(SERVICES["collector"]["stop_grace_period"].rstrip("s")) > int(timeout.group(1))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_images_are_small_and_not_root(path: pathlib.Path) -> None:
    """The last stage only copies built files and runs as a user other than root. No stage names a registry."""
    stages = re.split(r"^FROM ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    last = stages[-1]
    assert len(stages) > 2 and "pip install" not in last and "apt-get" not in last
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert all("/" not in stage.split()[0].partition("/")[2] and "." not in stage.split()[0].partition(":")[0] for stage in stages[1:])


@pytest.mark.parametrize("name", OWN)
def test_every_copied_source_exists(name: str) -> None:
    """Every source of a COPY is in the build context."""
    dockerfile, context = dockerfile_of(OWN[name])
    for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile.read_text(encoding="utf-8"), re.MULTILINE):
        *sources, _ = line.split()
        for source in sources:
            assert list(context.glob(source)), f"{dockerfile}: {source}"


def test_tags_of_own_images_are_the_version() -> None:
    """Tags equal the version of the distributions; the Collector's tag is the version of the OpenTelemetry Collector in it."""
    version = re.search(r'^version = "(.+)"$', (ROOT / "ingest" / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    for name, service in OWN.items():
        tag = service["image"].partition(":")[2]
        assert tag == ("0.159.0" if name == "collector" else version.group(1))


@pytest.mark.skipif(shutil.which("docker") is None, reason="no `docker` command")
def test_compose_accepts_the_files(tmp_path: pathlib.Path) -> None:
    """`docker compose config` succeeds with every profile, also with the tests' additional file."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("`docker` has no `compose`")
    environ = {**os.environ, **made_in(tmp_path / "made")}
    for files in ([COMPOSE], [COMPOSE, ROOT / "tests" / "docker" / "compose.yml"]):
        named = [argument for file in files for argument in ("-f", str(file))]
        command = ["docker", "compose", *named, "--profile", "*", "config", "--quiet"]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
