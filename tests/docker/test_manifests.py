"""Checks of deploy/kubernetes: against the repository (images, arguments, users, probes, secrets), and of one manifest against another."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from helpers.repo.repository import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
IMAGES = {service["image"] for service in COMPOSE.values() if "build" in service}


KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
OBJECTS = [each for name in KUSTOMIZATION["resources"] for each in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))]
# The ports of an OpenTelemetry agent, which may run on the same node: OTLP over gRPC and HTTP, health check, metrics.
USUAL = {"4317", "4318", "13133", "8888"}
# Not in the manifests: the ClickHouse server is another product's.
OUTSIDE = {("clickhouse", "8123")}


def workloads() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each workload's name and pod specification."""
    for each in OBJECTS:
        if "template" in each.get("spec", {}):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


PODS = dict(workloads())
SERVICES = {each["metadata"]["name"]: each["spec"] for each in OBJECTS if each["kind"] == "Service"}
CONTAINERS = [(name, each) for name, pod in PODS.items() for each in (*pod["containers"], *pod.get("initContainers", ()))]


def test_the_kustomization_has_every_manifest() -> None:
    """Each file is a resource, no name is used twice, and kubectl, where it is installed, renders the same objects."""
    assert set(KUSTOMIZATION) == {"apiVersion", "kind", "resources"}
    assert {path.name for path in FOLDER.iterdir()} == {*KUSTOMIZATION["resources"], "kustomization.yaml"}
    named = [(each["kind"], each["metadata"]["name"]) for each in OBJECTS]
    assert len(set(named)) == len(named) == 5
    if shutil.which("kubectl"):
        done = subprocess.run(["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        rendered = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}
        assert rendered == dict(zip(named, OBJECTS, strict=True))


def test_selectors_and_ports_refer_to_pods() -> None:
    """A workload selects its own pods, a Service those of one workload. The ports of Services and probes are named ports of the pods."""
    labels, ports = {}, {}
    for each in OBJECTS:
        if each["kind"] == "Service":
            continue
        name, spec = each["metadata"]["name"], each["spec"]
        labels[name] = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"] == labels[name] and spec.get("serviceName", "legato-gateway") in SERVICES
        ports[name] = {port["name"]: port["containerPort"] for one in PODS[name]["containers"] for port in one.get("ports", ())}
        for one in PODS[name]["containers"]:
            probes = [one[probe] for probe in ("startupProbe", "readinessProbe", "livenessProbe") if probe in one]
            assert all((probe.get("httpGet") or probe["tcpSocket"])["port"] in ports[name] for probe in probes)
    for name, spec in SERVICES.items():
        (pod,) = (pod for pod, own in labels.items() if spec["selector"].items() <= own.items())
        assert pod == name and all(ports[pod][port["targetPort"]] == port["port"] for port in spec["ports"])


def test_every_address_is_served() -> None:
    """Each URL in a setting names a port of a Service, or on a node's loopback a port that a container of the same pod listens on."""
    for pod, container in CONTAINERS:
        for variable in container.get("env", ()):
            if not (found := re.fullmatch(r"\w+://(?:\w+@)?([\w.-]+):(\d+)(?:/\w+)?", variable.get("value", ""))):
                assert "://" not in variable.get("value", "")
                continue
            host, port = found.groups()
            if host == "127.0.0.1":
                assert port in {each.get("value") for one in PODS[pod]["containers"] for each in one["env"]}
            elif (host, port) not in OUTSIDE:
                assert int(port) in {each["port"] for each in SERVICES[host]["ports"]}


def test_a_nodes_ports_are_not_those_of_an_opentelemetry_agent() -> None:
    """A pod on the host's network listens on no port of an OpenTelemetry agent, and no container asks for a host port."""
    for name, container in CONTAINERS:
        assert not any("hostPort" in port for port in container.get("ports", ()))
        if not PODS[name].get("hostNetwork") or container["name"] != "collector":
            continue
        text = "".join((ROOT / "collector" / argument.rpartition("/")[2]).read_text(encoding="utf-8") for argument in container["args"])
        listening = dict(re.findall(r"\$\{env:(LEGATO_COLLECTOR_\w+_PORT):-(\d+)\}", text))
        own = {each["name"]: each.get("value") for each in container["env"]}
        assert set(listening.values()) == USUAL and not {own.get(name, default) for name, default in listening.items()} & USUAL


@pytest.mark.parametrize(("pod", "container"), CONTAINERS, ids=lambda value: value if isinstance(value, str) else value["name"])
def test_every_container_is_confined(pod: str, container: dict[str, Any]) -> None:
    """Only project images; not root, except the container that sets the folders' owner; read-only file system; memory limits."""
    assert container["image"] in IMAGES
    own, around = container["securityContext"], PODS[pod]["securityContext"]
    assert own["readOnlyRootFilesystem"] and own["allowPrivilegeEscalation"] is False and own["capabilities"]["drop"] == ["ALL"]
    assert around["runAsNonRoot"] and (container["name"] == "folders") == ("runAsUser" in own)
    assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"]
    assert PODS[pod]["automountServiceAccountToken"] is False


@pytest.mark.parametrize(("pod", "container"), CONTAINERS, ids=lambda value: value if isinstance(value, str) else value["name"])
def test_every_mount_is_declared(pod: str, container: dict[str, Any]) -> None:
    """Each mount has a declared volume. Arguments name files of `collector/`, and each path in a setting lies below a mount."""
    claimed = {claim["metadata"]["name"] for each in OBJECTS for claim in each["spec"].get("volumeClaimTemplates", ())}
    declared = {volume["name"] for volume in PODS[pod]["volumes"]} | claimed
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert set(mounts.values()) <= declared
    # A mount with a subPath never gets a changed Secret or ConfigMap.
    assert not any("subPath" in mount for mount in container["volumeMounts"])
    for argument in container.get("args", ()):
        assert (ROOT / "collector" / argument.rpartition("/")[2]).exists()
    for variable in container.get("env", ()):
        value = variable.get("value", "")
        if value.startswith("/"):
            assert any(value.startswith(f"{path}/") for path in mounts), value


@pytest.mark.parametrize("pod", PODS)
def test_no_service_sets_a_variable(pod: str) -> None:
    """A Service `legato-web` would set LEGATO_WEB_PORT=tcp://… in all pods of its namespace, which is no port for `legato serve`."""
    assert PODS[pod]["enableServiceLinks"] is False


def test_every_setting_is_documented() -> None:
    """Each variable is in docs/reference.md or collector/README.md, except three that other programs define."""
    others = {"GOMEMLIMIT", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
    pages = (ROOT / "docs" / "reference.md").read_text() + (ROOT / "collector" / "README.md").read_text()
    for _, container in CONTAINERS:
        for variable in container.get("env", ()):
            assert variable["name"] in others or f"`{variable['name']}`" in pages, variable["name"]


def test_every_secret_key_is_created_in_the_readme() -> None:
    """The manifests use one Secret, and the command in deploy/README.md creates each of its keys."""
    page = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    text = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.yaml"))
    assert set(re.findall(r"secretName: (\w+)|secretKeyRef: \{name: (\w+)", text)) == {("legato", ""), ("", "legato")}
    for key in set(re.findall(r"key: ([\w.-]+)", text)) - {"nvidia.com"}:
        assert f"{key}=" in page or f"/{key} " in page or f"/{key}\n" in page, key


def test_a_starting_collector_is_not_killed() -> None:
    """A Collector that is killed twice in a row may lose data in flight: it has no liveness probe and at least 40 s to stop."""
    for name, container in CONTAINERS:
        if container["name"] == "collector":
            assert "livenessProbe" not in container and PODS[name]["terminationGracePeriodSeconds"] >= 40
