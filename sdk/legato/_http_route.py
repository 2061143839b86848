"""The route of a served request, as `http.route`: the template by which the framework found its endpoint, never the path itself.

A path may contain text of a prompt, and each id in it would be a separate route. So only what the application's code names leaves the
process: the framework's template, else the suffix of ``paths`` that matched, else a well-known address of an API. Without any of them the
route is unknown. The prefix under which a server or another program mounts the application is no part of it: it may be variable, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from legato._errors import guard

__all__ = ["Address", "asgi_template", "is_django", "wsgi_template"]

# Of the APIs of OpenAI, Anthropic, Ollama, Text Generation Inference and SageMaker. The longest first.
_KNOWN_PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/chat/completions", "/completions", "/responses", "/messages"),
    *("/api/chat", "/api/generate", "/generate_stream", "/generate", "/invocations"),
)
# Middlewares around an application, and applications mounted in one another.
_DEPTH_MAX = 16


class Address(NamedTuple):
    """The ``path`` of a request, for checks within the process, and what is known of its route.

    ``paths``: the configured suffixes. ``template`` returns that of the framework, or an empty string; it has one only once the request was
    routed.
    """

    path: str
    paths: tuple[str, ...] | None
    template: Callable[[], str]

    @property
    def is_named(self) -> bool:
        """Whether a configured suffix names the path."""
        return self.paths is not None and self.path.endswith(self.paths)

    def route(self) -> str:
        """Return the route, as far as the request was routed by now; an empty string if it is unknown."""
        found = ""
        with guard("http.route"):
            found = self.template()
        named = (each for each in (*sorted(self.paths or (), key=len, reverse=True), *_KNOWN_PATHS) if self.path.endswith(each))
        return found or next(named, "")


def asgi_template(scope: Mapping[str, Any], *, is_django: bool = False) -> str:
    """Return the template of the route that Starlette, FastAPI, Litestar or Django chose; an empty string if there is none."""
    if is_django:
        return _django_template(_below(str(scope.get("path", "")), str(scope.get("root_path", ""))))
    if isinstance(scope.get("path_template"), str):
        return str(scope["path_template"])
    endpoint = scope.get("endpoint")
    if endpoint is None:
        return ""
    prefix, routes = _mounts(scope)
    found = next((each for each in _noted(scope) if getattr(each, "endpoint", None) is endpoint), None)
    if found is None:
        # Before Starlette 1.0, only FastAPI noted the route.
        path = _below(str(scope["path"]), str(scope.get("root_path", "")))
        same = (each for each in _flat(routes) if getattr(each, "endpoint", None) is endpoint)
        found = next((each for each in same if each.path_regex.match(path)), None)
    template = getattr(found, "path", None)
    return prefix + template if isinstance(template, str) else ""


def _noted(scope: Mapping[str, Any]) -> Iterable[Any]:
    """Yield the routes that the framework may have noted. FastAPI has routes of included routers without their prefix, and one with it."""
    of_fastapi = scope.get("fastapi")
    included = of_fastapi.get("effective_route_context") if isinstance(of_fastapi, dict) else None
    yield getattr(included, "starlette_route", None) or included
    yield scope.get("route")


def _mounts(scope: Mapping[str, Any]) -> tuple[str, Iterable[Any]]:
    """Return the templates of the mounts through which the request went, and the routes of the last one.

    What Starlette's mounts took from the path is the difference of two root paths. If that cannot be explained by mounts, it is left out.
    """
    routes = getattr(scope.get("router"), "routes", None) or ()
    base, root = scope.get("app_root_path"), str(scope.get("root_path", ""))
    taken = root.removeprefix(base) if isinstance(base, str) and root.startswith(base) else ""
    prefix = ""
    for _ in range(_DEPTH_MAX):
        if not taken:
            return prefix, routes
        for each in _flat(routes):
            match = each.path_regex.match(taken + "/") if hasattr(each, "routes") and hasattr(each, "path_regex") else None
            if match and "path" in match.groupdict():
                prefix, routes = prefix + each.path, each.routes or ()
                taken = match["path"].rstrip("/") and "/" + match["path"].rstrip("/")
                break
        else:
            break
    return "", ()


def _flat(routes: Iterable[Any]) -> Iterable[Any]:
    """Yield these routes, and instead of one that takes nothing from the path (a mount at the root, a host) those that it has."""
    for each in routes:
        if hasattr(each, "routes") and getattr(each, "path", "") == "":
            yield from _flat(each.routes or ())
        else:
            yield each


def wsgi_template(environ: Mapping[str, Any], *, is_django: bool = False) -> str:
    """Return the template of the route that Flask, Bottle or Django chose; an empty string if there is none."""
    if is_django:
        # WSGI gives the bytes of the path as if they were Latin-1.
        return _django_template(str(environ.get("PATH_INFO", "")).encode("latin-1", "replace").decode("utf-8", "replace"))
    of_flask = getattr(environ.get("werkzeug.request"), "url_rule", None)
    rule = getattr(of_flask if of_flask is not None else environ.get("bottle.route"), "rule", None)
    return rule if isinstance(rule, str) else ""


def is_django(app: Any) -> bool:
    """Whether this is an application of Django's, also within middlewares of the usual form."""
    base: Any = getattr(sys.modules.get("django.core.handlers.base"), "BaseHandler", None)
    with guard("http.route"):
        for _ in range(_DEPTH_MAX if base is not None else 0):
            if isinstance(app, base):
                return True
            app = getattr(app, "app", None) or getattr(app, "application", None)
    return False


def _django_template(path: str) -> str:
    """Return the template of the path. Django keeps the one of a request where nothing else sees it, but finds it for any path."""
    urls: Any = sys.modules.get("django.urls")
    if urls is None:
        return ""
    try:
        route = str(urls.resolve(path).route)
    except Exception:
        # No such path, or a converter of the application's that fails.
        return ""
    return "/" + route.removeprefix("^").removeprefix("/").removesuffix("$")


def _below(path: str, root: str) -> str:
    """Return the path below this root path."""
    below = path.removeprefix(root)
    return below if below.startswith("/") else path
