# SPDX-License-Identifier: Apache-2.0
"""The manifests for Kubernetes fit the schemas of the API, the configuration and each other."""

from __future__ import annotations

import copy
import itertools
import shlex
from pathlib import Path
from typing import Any

import pytest

from sentineld.config import Config, load
from sentineld.model.job import JOB_VARIABLE
from sentineld.shim import client as shim

validation = pytest.importorskip("kubernetes_validate")
yaml = pytest.importorskip("yaml")

DOCS = Path(__file__).parents[3] / "docs"
VERSIONS = ("1.29", "1.33", "1.37")


def objects(name: str) -> list[dict[str, Any]]:
    text = (DOCS / f"kubernetes/{name}.yml").read_text()
    return list(yaml.safe_load_all(text))


OBJECTS = {
    f"{name}-{each['kind']}": each for name in ("sentineld", "training") for each in objects(name)
}
DAEMON = OBJECTS["sentineld-DaemonSet"]["spec"]["template"]["spec"]
TRAINING = OBJECTS["training-Job"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", OBJECTS)
def test_a_manifest_fits_the_schema(name: str, version: str) -> None:
    validation.validate(OBJECTS[name], version, strict=True)
    wrong = copy.deepcopy(OBJECTS[name])
    wrong["metadata"]["x"] = "x"
    with pytest.raises(validation.ValidationError):
        validation.validate(wrong, version, strict=True)


@pytest.mark.parametrize("pod", [DAEMON, TRAINING], ids=["daemon", "training"])
def test_each_mounted_volume_is_defined_and_each_volume_is_mounted(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    mounted = [mount["name"] for mount in container["volumeMounts"]]
    assert sorted(mounted) == sorted(volume["name"] for volume in pod["volumes"])


def mount_of(pod: dict[str, Any], path: str) -> dict[str, Any]:
    """The volume that is mounted at a folder that contains the path."""
    (container,) = pod["containers"]
    (name,) = [
        mount["name"]
        for mount in container["volumeMounts"]
        if Path(path).is_relative_to(mount["mountPath"])
    ]
    found: dict[str, Any] = next(one for one in pod["volumes"] if one["name"] == name)
    return found


def test_the_configuration_is_valid_and_its_paths_are_volumes(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(OBJECTS["sentineld-ConfigMap"]["data"]["config.toml"])
    config = load(file)
    assert config.auto_attach
    assert "hostPath" in mount_of(DAEMON, str(config.state_dir))
    (container,) = DAEMON["containers"]
    (port,) = container["ports"]
    assert port["containerPort"] == config.metrics_port
    assert container["args"] == ["--config", "/etc/sentineld/config.toml"]
    assert {one["name"]: one["value"] for one in container["env"]} == {
        "SENTINELD_CONTROL_SOCKET": str(config.control_socket)
    }
    # The training's only volume is the folder of the shims' socket, at the shim's default path.
    assert config.shim_socket == shim.SOCKET_PATH
    folders = [mount_of(pod, shim.SOCKET_PATH)["hostPath"]["path"] for pod in (DAEMON, TRAINING)]
    assert folders[0] == folders[1]
    assert config.control_socket != Config().control_socket
    assert "emptyDir" in mount_of(DAEMON, str(config.control_socket))
    assert len(TRAINING["volumes"]) == 1


def test_the_trainings_ranks_find_each_other() -> None:
    job, service = OBJECTS["training-Job"], OBJECTS["training-Service"]
    name = service["metadata"]["name"]
    (container,) = TRAINING["containers"]
    words = shlex.split(container["args"][0])
    options = dict(itertools.pairwise(words))
    # The pods of an indexed job are named JOB-INDEX; a headless service gives them DNS records.
    assert options["--master-addr"] == f"{job['metadata']['name']}-0.{name}"
    assert TRAINING["subdomain"] == name
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == job["spec"]["template"]["metadata"]["labels"]
    assert int(options["--nnodes"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert [one["name"] for one in container["env"]] == [JOB_VARIABLE]
    assert TRAINING["nodeSelector"] == DAEMON["nodeSelector"]
