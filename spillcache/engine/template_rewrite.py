"""Puts a template's costs in sight: rewritten so that they pass through its budget."""

# ruff: noqa: N802  (the names are the visitor's convention)

from typing import NoReturn

from jinja2 import TemplateSyntaxError, nodes
from jinja2.visitor import NodeTransformer

from spillcache.engine.template_budget import INT_BITS_MAX


def metered(template: nodes.Template) -> nodes.Template:
    """The template, changed in place. Calls filters that the sandbox names with an underscore.

    Raises TemplateSyntaxError for what can't be bounded, RecursionError for absurd nesting.
    """
    _Metered().visit(template)
    return template


class _Metered(NodeTransformer):
    """Sends what a template makes, loops over and compares through the budget."""

    def visit_Assign(self, node: nodes.Assign) -> nodes.Node:
        self.generic_visit(node)
        target = node.target
        names = sum(1 for _ in target.find_all(nodes.NSRef)) + isinstance(target, nodes.NSRef)
        if names:
            node.node = _filtered(node.node, "_kept", nodes.Const(names))
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "_ticked")
        for operand in node.ops[1:]:
            operand.expr = _filtered(operand.expr, "_ticked")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "_joined")

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        if isinstance(node.value, int) and node.value.bit_length() > INT_BITS_MAX:
            raise TemplateSyntaxError("a number is too large", node.lineno)
        return node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _filtered(pair.key, "_key")
        return _filtered(node, "_made")

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_counted")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "_copied") if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "_made")

    def visit_ScopedEvalContextModifier(self, node: nodes.Node) -> NoReturn:
        raise TemplateSyntaxError("autoescape is not offered", node.lineno)

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        # A constant is shown as any value is: a macro's own text counts as well.
        return nodes.Const(node.data, lineno=node.lineno)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        self.generic_visit(node)
        node.node = _filtered(node.node, "_ticked")
        return node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "_made") if node.ctx == "load" else node


def _filtered(node: nodes.Node, name: str, *args: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)
