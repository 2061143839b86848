"""Checks of the manifests in deploy/kubernetes against the repository: images, arguments, users, probes, secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from helpers.repo.repository import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
IMAGES = {service["image"] for service in COMPOSE.values() if "build" in service}


def workloads() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each workload's name and pod specification."""
    for path in sorted(FOLDER.glob("*.yaml")):
        for each in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if "template" in each.get("spec", {}):
                yield each["metadata"]["name"], each["spec"]["template"]["spec"]


PODS = dict(workloads())
CONTAINERS = [(name, each) for name, pod in PODS.items() for each in (*pod["containers"], *pod.get("initContainers", ()))]


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
    claims = [each for path in FOLDER.glob("*.yaml") for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    claimed = {claim["metadata"]["name"] for each in claims for claim in each["spec"].get("volumeClaimTemplates", ())}
    declared = {volume["name"] for volume in PODS[pod]["volumes"]} | claimed
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert set(mounts.values()) <= declared
    for argument in container.get("args", ()):
        assert (ROOT / "collector" / argument.rpartition("/")[2]).exists()
    for variable in container.get("env", ()):
        value = variable.get("value", "")
        if value.startswith("/"):
            assert any(value.startswith(f"{path}/") for path in mounts), value


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
