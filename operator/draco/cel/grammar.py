"""The grammar: cel-python's, with the rules replaced in which Kubernetes' language differs.

Owns the text given to lark. What differs: optional syntax (`a.?b`, `a[?b]`, `[?a]`, `{?a: b}`), trailing commas, names in back
quotes, string escapes, a sign that belongs to a number only where a value may begin, and `!` and `-` that do not mix. Rules with
an operator keep its token, because errors point at it. A rule with a question mark vanishes from the tree where it has but one
child, which is nearly everywhere.

One scanner for the whole text instead of one per grammar state: `inner` must never be read as `in ner`.
"""

import re
from importlib.util import find_spec
from typing import Final

_RULES: Final = {
    "expr": """?expr : conditionalor
                | conditionalor QUESTION conditionalor ":" expr -> conditional""",
    "conditionalor": """?conditionalor : conditionaland
                | conditionaland (OR conditionaland)+ -> logical""",
    "conditionaland": """?conditionaland : relation
                | relation (AND relation)+ -> logical""",
    "relation": """?relation : addition
                | relation (LT | LE | GT | GE | EQ | NE | IN) addition -> comparison""",
    "addition": """?addition : multiplication
                | addition (PLUS | MINUS) multiplication -> arithmetic""",
    "multiplication": """?multiplication : unary
                | multiplication (STAR | SLASH | PERCENT) unary -> arithmetic""",
    "unary": """?unary : member
                | unary_not member -> negation
                | unary_neg member -> negation""",
    "unary_not": "unary_not : NOT+",
    "unary_neg": "unary_neg : MINUS+",
    "member": """?member : primary
                | member DOT (IDENT | ESC_IDENT) -> member_dot
                | member DOT QUESTION (IDENT | ESC_IDENT) -> member_dot_optional
                | member DOT IDENT LPAR [exprlist] ")" -> member_dot_arg
                | member LSQB expr "]" -> member_index
                | member LSQB QUESTION expr "]" -> member_index_optional
                | member LBRACE [fieldinits] [","] "}" -> member_object""",
    "primary": """?primary : literal
                | DOT IDENT LPAR [exprlist] ")" -> dot_ident_arg
                | DOT IDENT -> dot_ident
                | IDENT LPAR [exprlist] ")" -> ident_arg
                | IDENT -> ident
                | "(" expr ")" -> paren_expr
                | LSQB [listinits] [","] "]" -> list_lit
                | LBRACE [mapinits] [","] "}" -> map_lit""",
    "fieldinits": """fieldinits : fieldinit
                | fieldinits "," fieldinit
fieldinit : [QUESTION] (IDENT | ESC_IDENT) COLON expr
listinits : listinit
                | listinits "," listinit
listinit : [QUESTION] expr""",
    "mapinits": """mapinits : mapinit
                | mapinits "," mapinit
mapinit : [QUESTION] expr COLON expr""",
    "literal": """literal : [MINUS] INT_LIT | UINT_LIT | [MINUS] FLOAT_LIT
                | STRING_LIT | BYTES_LIT | TRUE_LIT | FALSE_LIT | NULL_LIT""",
    "INT_LIT": "INT_LIT.5 : /0x[0-9a-fA-F]+|[0-9]+/",
    "UINT_LIT": "UINT_LIT.7 : /(?:0x[0-9a-fA-F]+|[0-9]+)[uU]/",
    "FLOAT_LIT": r"FLOAT_LIT.6 : /(?:[0-9]+\.[0-9]+|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/",
    "IDENT": r"""IDENT : /[_a-zA-Z][_a-zA-Z0-9]*/
ESC_IDENT : /`[a-zA-Z0-9_.\-\/ ]+`/
QUESTION : "?"
OR : "||"
AND : "&&"
LT : "<"
LE : "<="
GT : ">"
GE : ">="
EQ : "=="
NE : "!="
IN : "in"
TRUE_LIT : "true"
FALSE_LIT : "false"
PLUS : "+"
MINUS : "-"
STAR : "*"
SLASH : "/"
PERCENT : "%"
NOT : "!"
DOT : "."
LPAR : "("
LSQB : "["
LBRACE : "{"
COLON : ":" """,
    "COMMENT": r"COMMENT.9 : /\/\/[^\n]*/",
}
"""What replaces a rule or a terminal of cel-python's grammar, by its name; new ones stand behind one they belong to."""

_DROPPED: Final = re.compile(
    r"relation_\w+|addition_\w+|multiplication_\w+|member_\w+|dot_ident\w*|ident(?:_arg)?|paren_expr|list_lit|map_lit"
    r"|STRING_LIT|MLSTRING_LIT|BYTES_LIT|RESERVED"
)
"""Rules that another's alternatives have taken the place of, and terminals defined below."""

_DEFINITION: Final = re.compile(r"^(?P<name>\w+)(?:\.\d+)?[ \t]*:(?:.*\n)(?:[ \t]+\|.*\n|[ \t]+\S.*\n)*", re.MULTILINE)


def _quoted() -> str:
    """The pattern of a quoted string: triple quotes first; no way to match one text twice, so that it stays linear."""
    escape = r"\\(?:[abfnrtv\"'\\?`]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2})"
    raw = [rf"[rR]{quote * 3}[\s\S]*?{quote * 3}" for quote in "\"'"] + [rf"[rR]{q}[^{q}\n\r]*{q}" for q in "\"'"]
    triple = [rf"{quote * 3}(?:[^\\]|{escape})*?{quote * 3}" for quote in "\"'"]
    plain = [rf"{q}(?:[^{q}\\\n\r]|{escape})*{q}" for q in "\"'"]
    return "|".join([*raw, *triple, *plain])


def grammar() -> str:
    """The whole grammar as lark reads it; raises LookupError where cel-python's has lost a rule that is replaced here."""
    spec = find_spec("celpy")
    if spec is None or spec.origin is None:
        raise LookupError("cel-python is not installed")
    with open(spec.origin.removesuffix("__init__.py") + "cel.lark", encoding="utf-8") as file:  # noqa: PTH123 - pure folder
        text = file.read()
    replaced = set()

    def replace(definition: re.Match[str]) -> str:
        name = definition["name"]
        if _DROPPED.fullmatch(name):
            return ""
        if name in _RULES:
            replaced.add(name)
            return _RULES[name] + "\n"
        return definition[0]

    text = _DEFINITION.sub(replace, text)
    if missing := _RULES.keys() - replaced:
        raise LookupError(f"cel-python's grammar has no rule {', '.join(sorted(missing))}; this needs version 0.5")
    pattern = _quoted().replace("/", r"\/")
    return text + f"\nSTRING_LIT.8 : /{pattern}/\nBYTES_LIT.8 : /[bB](?:{pattern})/\n"
