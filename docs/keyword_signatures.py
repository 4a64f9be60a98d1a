"""An extension of Griffe: show the keywords of the functions of `electra.api`.

Griffe reads source text. The keywords of a function with `takes_keywords` are the fields of a
dataclass, which only the imported function knows.
"""

from __future__ import annotations

import inspect
from typing import Any

import griffe


class KeywordSignatures(griffe.Extension):
    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Take signature and docstring of a decorated function from the imported one."""
        if not any("takes_keywords" in str(each.value) for each in func.decorators):
            return
        function = griffe.dynamic_import(func.path)
        assert func.docstring is not None
        func.docstring.value = inspect.getdoc(function)
        parameters = []
        for each in inspect.signature(function).parameters.values():
            default = None
            if each.default is not each.empty:
                default = repr(each.default)
            kind = griffe.ParameterKind[each.kind.name.lower()]
            hint = str(each.annotation)
            parameters.append(
                griffe.Parameter(each.name, annotation=hint, kind=kind, default=default)
            )
        func.parameters = griffe.Parameters(*parameters)
