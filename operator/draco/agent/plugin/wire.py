"""gRPC services over kubelet's messages: server handlers and client calls, built from the message descriptors.

Owns the mapping between service names on the wire and Python callables. Knows nothing of claims.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from draco.agent.plugin.api import dra_v1_pb2, health_v1_pb2, registration_pb2

REGISTRATION: ServiceDescriptor = registration_pb2.DESCRIPTOR.services_by_name["Registration"]
DRA_V1: ServiceDescriptor = dra_v1_pb2.DESCRIPTOR.services_by_name["DRAPlugin"]
HEALTH_V1: ServiceDescriptor = health_v1_pb2.DESCRIPTOR.services_by_name["DRAResourceHealth"]
HEALTH_V1ALPHA1 = "v1alpha1.DRAResourceHealth"
"""The name that older kubelets call; the messages are those of v1."""

SUPPORTED_VERSIONS = ("v1.DRAPlugin", "v1.DRAResourceHealth", HEALTH_V1ALPHA1)
"""Announced names of the services at registration. These are not their names on the wire."""

UnaryBehaviour = Callable[[Any, Any], Awaitable[Message]]
StreamBehaviour = Callable[[Any, Any], AsyncIterator[Message]]


def _classes(method: MethodDescriptor) -> tuple[type[Message], type[Message]]:
    return GetMessageClass(method.input_type), GetMessageClass(method.output_type)


def handlers(
    service: ServiceDescriptor, behaviours: Mapping[str, UnaryBehaviour | StreamBehaviour], *, name: str = ""
) -> Any:
    """A handler for `server.add_generic_rpc_handlers`, serving every method of `service` under its name, or `name`.

    A behaviour is called with (request, context); it is a coroutine function, or an async generator for a streaming method.
    """
    table = {}
    for method in service.methods:
        request, response = _classes(method)
        make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
        table[method.name] = make(
            behaviours[method.name],
            request_deserializer=request.FromString,
            response_serializer=response.SerializeToString,
        )
    return grpc.method_handlers_generic_handler(name or service.full_name, table)


def unary(channel: grpc.aio.Channel, service: ServiceDescriptor, method: str) -> Any:
    """A client call, awaited with a request and a timeout in seconds."""
    request, response = _classes(service.methods_by_name[method])
    return channel.unary_unary(
        f"/{service.full_name}/{method}",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
