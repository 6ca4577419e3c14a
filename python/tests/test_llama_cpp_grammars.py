"""GBNF grammars, compared with llama.cpp's own grammar sampler: the allowed tokens at each position of texts that the server draws."""

import functools
import itertools
import json
import os

import croupier
import libllama
import libllama_vocabulary
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(bool(libllama.why_not()), reason=str(libllama.why_not()))

#: The number of random grammars of each kind, the number of texts of each grammar, and their maximal length.
RANDOM, TEXTS_OF, LONGEST = int(os.environ.get("CROUPIER_LLAMA_GRAMMARS", "60")), 3, 40
#: The same for random grammars, which is shorter: llama.cpp keeps every derivation of what it has read, and their number grows.
LONGEST_RANDOM = 10
ENDS = ["<end>", "<turn>"]
LONGER = ["true", "false", "null", '{"', '":', '", "', "[[", "]}", " true", "12", "int ", "return", "é", "日本", "ab", "ba", "aba", "- ", "\n\n", " \n", "Q", "本"]
PIECES = ENDS + [chr(code) for code in range(32, 127)] + ["\n", "\t"] + LONGER
PIECES = list(dict.fromkeys(PIECES))
VOCAB = len(PIECES)

KNOWN = {
    "json": r'''
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
''',
    "arithmetic": r'''
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
''',
    "list": r'''
root ::= item+
# Excludes various line break characters
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
''',
    "c": r'''
root ::= (declaration)*
declaration ::= dataType identifier "(" parameter? ")" "{" statement* "}"
dataType  ::= "int" ws | "float" ws | "char" ws
identifier ::= [a-zA-Z_] [a-zA-Z_0-9]*
parameter ::= dataType identifier
statement ::=
    ( dataType identifier ws "=" ws expression ";" ) |
    ( identifier ws "=" ws expression ";" ) |
    ( "return" ws expression ";" ) |
    ( "while" "(" condition ")" "{" statement* "}" )
condition ::= expression relationOperator expression
relationOperator ::= ("<=" | "<" | "==" | "!=" | ">=" | ">")
expression ::= term (("+" | "-") term)*
term ::= factor(("*" | "/") factor)*
factor ::= identifier | number | unaryTerm | funcCall | parenExpression
unaryTerm ::= "-" factor
funcCall ::= identifier "(" argList? ")"
parenExpression ::= "(" ws expression ws ")"
argList ::= expression ("," ws expression)*
number ::= [0-9]+
ws ::= ([ \t\n]+)
''',
    "escapes": r'''root ::= "\x41\u00e9\"\\[\]" [\x61-c\]\-] ("\t" | "\n"){1,2} [^\u0000-\u007f]? .''',
    "calls itself last": 'root ::= "a" rest\nrest ::= "b" rest | ws "c"\nws ::= ([ \\t\\n] ws)?\n',
    "repeated": 'root ::= ("ab"{2} | [0-9]{3,} | "ba"{1} "-"{0,3})+ "."',
}


@functools.cache
def library():
    return libllama.Library(os.environ["CROUPIER_LIBLLAMA"])


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama") / "vocabulary.gguf"
    # Pieces of such vocabularies have another character for a space.
    libllama_vocabulary.write(path, [piece.replace(" ", "▁") for piece in PIECES], eos=0, eot=1)
    return libllama_vocabulary.load(library(), path)


@pytest.fixture
def server(serve, tmp_path):
    (tmp_path / "vocabulary.json").write_text(json.dumps([None, None, *PIECES[len(ENDS):]]))
    return serve("--grammars=true", f"--vocabulary={tmp_path / 'vocabulary.json'}")


def part(random, depth):
    """A part of a rule, and whether it matches the empty text. Rules are called only after a character, and a part that matches the empty
    text is not repeated: llama.cpp has no left-recursive rules, and such repetitions never end there."""
    kind = random.integers(0, 4 if depth == 0 else 9)
    if kind < 2:
        return json.dumps("".join(random.choice(list("ab1é "), random.integers(1, 4))), ensure_ascii=False), False
    if kind == 2:
        chosen = random.choice(["[ab]", "[a-c]", "[^b]", "[b1é]", "[^a-zé]", '""', "[ \\n]", "."])
        return chosen, chosen == '""'
    if kind == 3:
        return random.choice(['"a" one', '"b" root', "[ab1] two", '"é" root "b"', '"a" (two | "1")', '[^a] (one "b")?']), False
    parts = [part(random, depth - 1) for _ in range(random.integers(2, 4))]
    if kind < 6:
        return " ".join(text for text, _ in parts), all(nothing for _, nothing in parts)
    if kind < 8:
        return f"({' | '.join(text for text, _ in parts)})", any(nothing for _, nothing in parts)
    text, nothing = parts[0]
    times = "?" if nothing else random.choice(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}"])
    return f"({text}){times}", nothing or times in ("*", "?", "{0,2}")


def rules(random):
    return "".join(f"{name} ::= {part(random, 2)[0]}\n" for name in ("root", "one", "two"))


def follow(server, vocabulary, gbnf, random, longest=LONGEST):
    """Compares texts of a grammar. Returns the number of drawn tokens, and the largest and smallest number of allowed tokens."""
    asked = {"mode": croupier.pb.LOGPROBS_MODE_PROCESSED, "token_ids": range(VOCAB)}
    drawn, counts = 0, []
    with croupier.connect(server.uds, VOCAB, eos_token_ids=[0, 1]) as stream:
        for seed in range(TEXTS_OF):
            chain = libllama.Chain(library(), ("grammar", vocabulary, gbnf.encode(), b"root"))
            text = stream.open(grammar={"gbnf": gbnf}, logprobs=asked, seed=seed, max_tokens=longest)
            with chain:
                while text.finish_reason is None:
                    # Make the tokens that end a text less likely.
                    row = random.normal(0, 1, VOCAB).astype(np.float32) - 2 * (np.arange(VOCAB) < 2)
                    [work] = stream.step(row[None], [text]).work
                    [token] = work.tokens
                    here = np.isfinite(np.array(token.requested_logprobs))
                    kept, _ = chain.left(row)
                    there = np.zeros(VOCAB, bool)
                    there[kept["id"][np.isfinite(kept["logit"])]] = True
                    behind = "".join(PIECES[t] for t in text.tokens[:-1])
                    assert (here == there).all(), (gbnf, behind, [(PIECES[t], bool(here[t])) for t in np.flatnonzero(here != there)])
                    counts.append(int(here.sum()))
                    drawn += 1
                    if token.token_id >= len(ENDS):
                        chain.accept([token.token_id])
    return drawn, counts


@pytest.mark.parametrize("name", KNOWN)
def test_known_grammars_allow_what_llama_cpp_does(server, vocabulary, name):
    drawn, counts = follow(server, vocabulary, KNOWN[name], np.random.default_rng(3))
    print(f"{name}: {drawn} tokens, of {min(counts)} to {max(counts)} that could have come")
    assert drawn > TEXTS_OF


def test_random_grammars_allow_what_llama_cpp_does(server, vocabulary):
    random, drawn, compared = np.random.default_rng(4), 0, 0
    for gbnf in itertools.islice(map(rules, itertools.repeat(random)), RANDOM):
        tokens, _ = follow(server, vocabulary, gbnf, random, LONGEST_RANDOM)
        drawn, compared = drawn + tokens, compared + 1
    print(f"{compared} grammars, {drawn} tokens")
    assert drawn > 3 * TEXTS_OF * compared
