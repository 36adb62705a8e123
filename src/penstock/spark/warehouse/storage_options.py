"""Options of object stores, called as delta-rs calls them, in the words of Arrow's file systems and
of delta-rs itself. Values alone: nothing is opened or asked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.errors import InvalidPipeline

# What Arrow calls it, and what delta-rs takes for it, in any case of letters.
_S3: Final = {
    "access_key": ("aws_access_key_id", "access_key_id"),
    "secret_key": ("aws_secret_access_key", "secret_access_key"),
    "session_token": ("aws_session_token", "aws_token", "session_token", "token"),
    "region": ("aws_region", "region", "aws_default_region", "default_region"),
    "role_arn": ("aws_iam_role_arn", "aws_s3_assume_role_arn"),
    "session_name": ("aws_iam_role_session_name", "aws_s3_role_session_name"),
}
_ENDPOINT: Final = ("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint", "endpoint_url")
_ENDPOINT_NAMES: Final = (*_ENDPOINT, "endpoint")
_ALLOW_HTTP: Final = ("aws_allow_http", "allow_http")
_ANONYMOUS: Final = ("aws_skip_signature", "skip_signature")
_VIRTUAL: Final = ("aws_virtual_hosted_style_request", "virtual_hosted_style_request")
_AZURE: Final = {
    "account_name": ("azure_storage_account_name", "account_name"),
    "account_key": (
        "azure_storage_account_key",
        "azure_storage_access_key",
        "azure_storage_master_key",
        "account_key",
        "access_key",
    ),
    "sas_token": ("azure_storage_sas_key", "azure_storage_sas_token", "sas_key", "sas_token"),
    "client_id": ("azure_storage_client_id", "azure_client_id", "client_id"),
    "client_secret": ("azure_storage_client_secret", "azure_client_secret", "client_secret"),
    "tenant_id": ("azure_storage_tenant_id", "azure_tenant_id", "tenant_id"),
}
# Credentials that delta-rs takes as an option and Arrow from the environment alone.
_ENVIRONMENT_ALONE: Final = {
    "s3": ("aws_profile", "aws_web_identity_token_file"),
    "gs": (
        "google_service_account",
        "google_service_account_path",
        "google_service_account_key",
        "google_application_credentials",
        "service_account",
        "service_account_key",
        "application_credentials",
    ),
    "abfss": (),
}
_TRUE: Final = ("1", "true", "t", "yes", "y", "on")


def s3_arguments(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Any]:
    """What Arrow's S3 file system is made with. Credentials that no option gives it finds by
    itself, wherever it runs: environment, profile, role of the machine or pod."""
    told = _told(options, "s3")
    found: dict[str, Any] = _named(told, _S3)
    if ("access_key" in found) != ("secret_key" in found):
        raise InvalidPipeline(
            "warehouse.options has one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: both or "
            "neither are needed."
        )
    endpoint = s3_endpoint(options, environ)
    if endpoint is not None:
        parts = urlsplit(endpoint)
        found["scheme"], found["endpoint_override"] = parts.scheme, parts.netloc
        found.setdefault("region", _region(environ) or "us-east-1")  # it is part of a signature
    elif "region" not in found and _region(environ) is not None:
        found["region"] = _region(environ)
    if _is_true(_first(told, _VIRTUAL)):
        found["force_virtual_addressing"] = True
    if _is_true(_first(told, _ANONYMOUS)):
        found["anonymous"] = True
    return found


def s3_endpoint(options: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    """The URL of a store that is not Amazon's."""
    found = _first(_told(options, "s3"), _ENDPOINT_NAMES)
    found = found or _first({name.lower(): value for name, value in environ.items()}, _ENDPOINT)
    if not found:
        return None
    parts = urlsplit(found)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
        raise InvalidPipeline(
            f"The endpoint of the object store is {found!r}: it has to be http:// or https:// and "
            "a host, with nothing behind it."
        )
    return found.rstrip("/")


def s3_with_place(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Options for tasks: those given, and where the store is. Credentials of the driver's
    environment stay there; tasks have their own."""
    told, found = _told(options, "s3"), dict(options)
    endpoint, region = s3_endpoint(options, environ), _region(environ)
    if endpoint is not None and _first(told, _ENDPOINT_NAMES[1:]) is None:
        found["AWS_ENDPOINT_URL"] = endpoint
    if region is not None and _first(told, _S3["region"]) is None:
        found["AWS_REGION"] = region
    return found


def s3_for_delta(
    options: Mapping[str, str], environ: Mapping[str, str], region: str | None
) -> dict[str, str]:
    """The same for delta-rs, which has to be told that a store without TLS is meant."""
    found = s3_with_place(options, environ)
    told = _told(found, "s3")
    if region is not None and _first(told, _S3["region"]) is None:
        found["AWS_REGION"] = region
    endpoint = _first(told, _ENDPOINT_NAMES) or ""
    if endpoint.startswith("http:") and _first(told, _ALLOW_HTTP) is None:
        found["AWS_ALLOW_HTTP"] = "true"
    return found


def gcs_arguments(options: Mapping[str, str]) -> dict[str, Any]:
    told = _told(options, "gs")
    return {"anonymous": True} if _is_true(_first(told, ("google_skip_signature",))) else {}


def azure_arguments(
    account: str | None, options: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, Any]:
    """What Arrow's Azure file system is made with; `account` is the one that the path names."""
    found: dict[str, Any] = _named(_told(options, "abfss"), _AZURE)
    if not any(name in found for name in ("account_key", "sas_token", "client_secret")):
        around = {name.lower(): value for name, value in environ.items()}
        names = {
            name: tuple(each for each in many if each.startswith("azure"))
            for name, many in _AZURE.items()
        }
        found = {**_named(around, names), **found}
    if account is not None:
        found["account_name"] = account
    if "account_name" not in found:
        raise InvalidPipeline(
            "The path names no storage account: spell it abfss://CONTAINER@ACCOUNT.dfs.core."
            "windows.net/…, or set AZURE_STORAGE_ACCOUNT_NAME in warehouse.options."
        )
    return found


def _told(options: Mapping[str, str], scheme: str) -> dict[str, str]:
    told = {name.lower(): value for name, value in options.items()}
    for name in _ENVIRONMENT_ALONE[scheme]:
        if name in told:
            raise InvalidPipeline(
                f"warehouse.options.{name} is not known to everything that reads and writes the "
                "files: set it as a variable in the environment of driver and executors instead."
            )
    return told


def _named(told: Mapping[str, str], names: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    found = {argument: _first(told, known) for argument, known in names.items()}
    return {argument: value for argument, value in found.items() if value}


def _first(told: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((told[name] for name in names if name in told), None)


def _region(environ: Mapping[str, str]) -> str | None:
    return environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")


def _is_true(value: str | None) -> bool:
    return value is not None and value.strip().lower() in _TRUE
