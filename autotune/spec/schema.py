"""From a YAML document to a pydantic model, with pydantic's complaints put into words with file, line and remedy."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from autotune.errors import UserError
from autotune.spec.flag import nearest
from autotune.spec.yaml_text import Document, Plain, Where

Model = TypeVar("Model", bound=BaseModel)

_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
}


def validated(model: type[Model], document: Document, where: Where = ()) -> Model:
    """The part of the document at `where` as a `model`. Raises UserError for the first thing that doesn't fit."""
    value: Plain = document.value
    for step in where:
        value = value[step]  # type: ignore[index]
    try:
        return model.model_validate(value)
    except ValidationError as error:
        # An unknown key often explains a missing one (`model_name` for `model`): it goes first.
        problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
        raise _in_words(model, problems[0]["type"], problems[0], document, where) from None


def _in_words(model: type[BaseModel], kind: str, problem: object, document: Document, where: Where) -> UserError:
    assert isinstance(problem, dict)
    path: Where = (*where, *problem["loc"])
    given = problem["input"]
    shown = given if isinstance(given, str | int | float) else None
    key = str(path[-1]) if path else ""
    match kind:
        case "extra_forbidden":
            known = _keys_at(model, problem["loc"][:-1])
            near = nearest(key, known)
            remedy = f"did you mean {near}? " if near else ""
            return document.error("unknown key", *path, value=shown, remedy=f"{remedy}Known keys: {', '.join(known)}")
        case "missing":
            return document.error("this key is missing", *path, remedy=f"add `{key}:`")
        case "too_short" | "string_too_short":
            return document.error("this is empty", *path, remedy="give at least one")
        case _ if kind in _WANTED:
            wanted = _WANTED[kind]
            return document.error(f"this must be {wanted}", *path, value=given, remedy=f"write {wanted} here")
        case _:
            return document.error(
                str(problem["msg"]).removeprefix("Value error, "), *path, value=shown, remedy="correct this value"
            )


def _keys_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    """The keys that the model nested at `loc` knows."""
    here: type[BaseModel] = model
    for step in loc:
        if isinstance(step, int) or step not in here.model_fields:
            continue
        inner = next((part for part in _models(here.model_fields[step].annotation)), None)
        if inner is None:
            return []
        here = inner
    return [field.alias or name for name, field in here.model_fields.items()]


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in getattr(annotation, "__args__", ()) for found in _models(part)]
