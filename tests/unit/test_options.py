import click
import pytest

from draco.options import DriverName, HostPath, ListenAddress, Seconds


@pytest.mark.parametrize(
    ("address", "expected"), [("[::1]:8080", ("::1", 8080)), (":0", ("", 0)), ("localhost:1", ("localhost", 1))]
)
def test_addresses_are_host_and_port(address: str, expected: tuple[str, int]) -> None:
    assert ListenAddress().convert(address, None, None) == expected


@pytest.mark.parametrize(
    "address",
    [
        "8080",
        "host:",
        "host:70000",
        "host:http",
        "host:²",
        f"host:{'9' * 5000}",
        f"{'h' * 64}:80",
        "a..b:80",
        "a\x1b:80",
    ],
)
def test_what_is_no_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is not HOST:PORT, such as 0\.0\.0\.0:8080"):
        ListenAddress().convert(address, None, None)


@pytest.mark.parametrize("name", ["gpu.nvidia.com", "gpu-0.example", "a", "a" * 63])
def test_a_dns_subdomain_names_a_driver(name: str) -> None:
    assert DriverName().convert(name, None, None) == name


@pytest.mark.parametrize(
    "name", ["", "Bad Driver", "GPU.example.com", "gpu..com", "-gpu", "gpu.", "../gpu", "gpu\n", "a" * 64]
)
def test_what_the_api_server_would_not_take_for_a_driver_is_refused(name: str) -> None:
    with pytest.raises(
        click.BadParameter, match=r"cannot name a driver: use a DNS subdomain .* of at most 63 characters"
    ):
        DriverName().convert(name, None, None)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e300", "0", "-1", "", "one"])
def test_what_is_no_time_is_refused(value: str) -> None:
    with pytest.raises(click.BadParameter):
        Seconds(min=0.1).convert(value, None, None)


def test_a_time_is_a_number_of_seconds() -> None:
    assert Seconds(min=0.1).convert("2.5", None, None) == 2.5
    assert Seconds(min=0).convert("0", None, None) == 0
    with pytest.raises(click.BadParameter):
        Seconds(min=0, min_open=True).convert("0", None, None)


@pytest.mark.parametrize("path", ["", "/opt/hami/libvgpu.so", "/opt/..hidden/lib.so"])
def test_a_file_of_the_node_is_named_by_its_whole_path(path: str) -> None:
    assert HostPath().convert(path, None, None) == path


@pytest.mark.parametrize(
    "path", ["libvgpu.so", "./lib.so", "/opt/../etc/lib.so", "/opt/./lib.so", "/opt/..", "/opt/a\nb"]
)
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(click.BadParameter, match="is not an absolute path without"):
        HostPath().convert(path, None, None)
