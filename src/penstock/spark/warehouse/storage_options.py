"""Options of object stores, under the names of delta-rs, as arguments of Arrow's file systems and
as options of delta-rs. Pure functions: nothing is opened here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.errors import InvalidPipeline

# Arguments of Arrow, and the options of delta-rs for each, in any case of letters.
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
_AZURE_ENDPOINT: Final = ("azure_storage_endpoint", "azure_endpoint", "endpoint")
# Credentials that delta-rs takes as options, and Arrow only from the environment.
_ENVIRONMENT_ONLY: Final = {
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
    """The arguments of Arrow's S3 file system. Without credentials in the options it looks for them
    where it runs: environment, profile, role of the machine or pod."""
    by_name = _lower(options, "s3")
    arguments: dict[str, Any] = _named(by_name, _S3)
    if ("access_key" in arguments) != ("secret_key" in arguments):
        raise InvalidPipeline(
            "warehouse.options has only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Set "
            "both or neither."
        )
    endpoint = s3_endpoint(options, environ)
    if endpoint is not None:
        parts = urlsplit(endpoint)
        arguments["scheme"], arguments["endpoint_override"] = parts.scheme, parts.netloc
        arguments.setdefault("region", _region(environ) or "us-east-1")  # it is part of a signature
    elif "region" not in arguments and _region(environ) is not None:
        arguments["region"] = _region(environ)
    if _is_true(_first(by_name, _VIRTUAL)):
        arguments["force_virtual_addressing"] = True
    if _is_true(_first(by_name, _ANONYMOUS)):
        arguments["anonymous"] = True
    return arguments


def s3_endpoint(options: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    """The URL of a store that is not Amazon's."""
    endpoint = _first(_lower(options, "s3"), _ENDPOINT_NAMES)
    endpoint = endpoint or _first(
        {name.lower(): value for name, value in environ.items()}, _ENDPOINT
    )
    if not endpoint:
        return None
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
        raise InvalidPipeline(
            f"The endpoint of the object store is {endpoint!r}. It has to be http:// or https:// "
            "and a host, with nothing after it."
        )
    return endpoint.rstrip("/")


def s3_with_endpoint(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Options for tasks: these, and the endpoint and region of the driver's environment.
    Credentials of that environment stay there; tasks have their own."""
    by_name, completed = _lower(options, "s3"), dict(options)
    endpoint, region = s3_endpoint(options, environ), _region(environ)
    if endpoint is not None and _first(by_name, _ENDPOINT_NAMES[1:]) is None:
        completed["AWS_ENDPOINT_URL"] = endpoint
    if region is not None and _first(by_name, _S3["region"]) is None:
        completed["AWS_REGION"] = region
    return completed


def s3_for_delta(
    options: Mapping[str, str], environ: Mapping[str, str], region: str | None
) -> dict[str, str]:
    """The same for delta-rs, which accepts a store without TLS only if an option says so."""
    completed = s3_with_endpoint(options, environ)
    by_name = _lower(completed, "s3")
    if region is not None and _first(by_name, _S3["region"]) is None:
        completed["AWS_REGION"] = region
    endpoint = _first(by_name, _ENDPOINT_NAMES) or ""
    if endpoint.startswith("http:") and _first(by_name, _ALLOW_HTTP) is None:
        completed["AWS_ALLOW_HTTP"] = "true"
    return completed


def gcs_arguments(options: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of Arrow's GCS file system."""
    by_name = _lower(options, "gs")
    return {"anonymous": True} if _is_true(_first(by_name, ("google_skip_signature",))) else {}


def azure_arguments(
    account: str | None, options: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, Any]:
    """The arguments of Arrow's Azure file system; `account` is the one in the path."""
    arguments: dict[str, Any] = _named(_lower(options, "abfss"), _AZURE)
    if not any(name in arguments for name in ("account_key", "sas_token", "client_secret")):
        variables = {name.lower(): value for name, value in environ.items()}
        names = {
            name: tuple(each for each in many if each.startswith("azure"))
            for name, many in _AZURE.items()
        }
        arguments = {**_named(variables, names), **arguments}
    if account is not None:
        arguments["account_name"] = account
    arguments.update(_azure_endpoint(arguments.get("account_name"), options))
    if "account_name" not in arguments:
        raise InvalidPipeline(
            "The path names no storage account. Write it as abfss://CONTAINER@ACCOUNT.dfs.core."
            "windows.net/…, or set AZURE_STORAGE_ACCOUNT_NAME in warehouse.options."
        )
    return arguments


def azure_for_delta(options: Mapping[str, str]) -> dict[str, str]:
    """The options of delta-rs, which accepts a store without TLS only if one says so."""
    endpoint = _first(_lower(options, "abfss"), _AZURE_ENDPOINT) or ""
    return {"allow_http": "true", **options} if endpoint.startswith("http:") else dict(options)


def _azure_endpoint(account: str | None, options: Mapping[str, str]) -> dict[str, str]:
    """Where Arrow finds a store that is not at Azure's usual address: in another cloud, whose host
    begins with the account, or an emulator, whose path is the account."""
    endpoint = _first(_lower(options, "abfss"), _AZURE_ENDPOINT)
    if endpoint is None:
        return {}
    parts = urlsplit(endpoint)
    host, path = parts.netloc, parts.path.strip("/")
    if parts.scheme in ("http", "https") and account is not None:
        if path == account:
            return _azure_authorities(parts.scheme, host, host)
        if not path and host.startswith(f"{account}."):
            blob = host.removeprefix(account)
            return _azure_authorities(parts.scheme, blob, blob.replace(".blob.", ".dfs.", 1))
    raise InvalidPipeline(
        f"The endpoint of the storage account is {endpoint!r}. It has to be "
        "https://ACCOUNT.blob.…, or http://HOST:PORT/ACCOUNT for an emulator."
    )


def _azure_authorities(scheme: str, blob: str, dfs: str) -> dict[str, str]:
    return {
        "blob_storage_scheme": scheme,
        "dfs_storage_scheme": scheme,
        "blob_storage_authority": blob,
        "dfs_storage_authority": dfs,
    }


def _lower(options: Mapping[str, str], scheme: str) -> dict[str, str]:
    """Options by their names in small letters; an error for one that not every engine takes."""
    by_name = {name.lower(): value for name, value in options.items()}
    for name in _ENVIRONMENT_ONLY[scheme]:
        if name in by_name:
            raise InvalidPipeline(
                f"warehouse.options.{name} is not accepted by every program that reads and writes "
                "the files. Set it as a variable in the environment of driver and executors."
            )
    return by_name


def _named(options: Mapping[str, str], arguments: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """The arguments that an option sets."""
    values = {argument: _first(options, names) for argument, names in arguments.items()}
    return {argument: value for argument, value in values.items() if value}


def _first(options: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((options[name] for name in names if name in options), None)


def _region(environ: Mapping[str, str]) -> str | None:
    return environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")


def _is_true(value: str | None) -> bool:
    return value is not None and value.strip().lower() in _TRUE
