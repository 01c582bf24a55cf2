#!/usr/bin/env python3
"""Checks the theorem, and that its proof depends on the rules.

usage: proof/theorem/check.py [--quick]

- `coqc` compiles Races.v, and prints for both theorems that they rest on no axiom and on nothing admitted.
- The file has no word that would let a proof rest on something.
- With each rule of BROKEN changed, the proof of a theorem no longer goes through, in the lemma that docs/broken-rules.md
  names. `--quick` leaves this out.
- With the changes of HARMLESS, it does: so a proof does not fail because of a changed text alone.
"""

import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CLOSED = "Closed under the global context"
THEOREMS = ["no_races", "no_use_after_free"]
# The proof is between these texts. The examples at the end name the rules with their arguments.
PROOF, EXAMPLES = "Lemma at_old", "(* ==== The definitions say something"

# A rule that is broken, its text, and the text of the broken rule.
BROKEN = [
    ("an event is recorded on another stream than the value's",
     "| m_record s n : c = Record s (Pool n) ->", "| m_record s n t : c = Record t (Pool n) ->"),
    ("a stream waits for another event",
     "| m_wait l n : c = Wait l (Pool n) -> move c b (InTransit n)",
     "| m_wait l n m : c = Wait l (Pool n) -> move c b (InTransit m)"),
    ("a wait of one stream gives the value to another one",
     "move c b (InTransit n) (of_line l)", "move c b (InTransit n) (On n)"),
    ("hand_off waits for the event of another stream",
     "| m_handed_off s t : c = Wait (Stream t) (Own s) ->", "| m_handed_off s t : c = Wait (Stream t) (Own t) ->"),
    ("hand_off has one event for all streams",
     "-> s = t) ->\n    step tr", "-> t = t) ->\n    step tr"),
    ("a leased event is recorded again",
     "forall b, ~ holds (st b) n.", "forall b, holds (st b) n -> st b = st b."),
    ("a stream uses a value of another stream",
     "| m_use l rd wr : c = Use l rd wr -> move c b (of_line l) (of_line l)",
     "| m_use l rd wr m : c = Use l rd wr -> move c b (of_line m) (of_line m)"),
    ("a stream frees a value of another stream",
     "| m_free l bs : c = Free l bs -> In b bs -> move c b (of_line l) Freed",
     "| m_free l bs m : c = Free l bs -> In b bs -> move c b (of_line m) Freed"),
    ("a value on a stream becomes idle without a wait", "| q_bind s : quiet Idle (On s)", "| q_bind s : quiet (On s) Idle"),
    ("a read writes", "~ In b wr -> In (Reading l) al ->", "~ In b [] -> In (Reading l) al ->"),
    ("a read does not wait for the producer",
     "| m_reading p rs al l : c = Wait l (Pool p) ->", "| m_reading p rs al l : c = Wait l (Own p) ->"),
    ("a read that still reads is dropped without an event",
     "(forall s, a <> Reading (Stream s)) ->", "(forall s : nat, a = a) ->"),
    ("only the newest read of all streams is kept",
     "(s, n) :: filter (fun r : nat * nat => negb (fst r =? s)) rs", "(s, n) :: filter (fun r : nat * nat => negb (fst r =? fst r)) rs"),
    ("unshare while something reads", "| q_unshare l p rs : quiet (Shared p rs [])", "| q_unshare l p rs al : quiet (Shared p rs al)"),
    ("unshare does not wait for the readers",
     "quiet (Shared p rs []) (Unsharing l p rs rs)", "quiet (Shared p rs []) (Unsharing l p rs [])"),
    ("unshare does not wait for the producer",
     "| m_unshared l p rs : c = Wait l (Pool p) ->", "| m_unshared l p rs n : c = Wait l (Pool n) ->"),
    ("a hand_off that failed gives the value to the other stream",
     "| q_not_handed_off s t : quiet (HandingOff s t) (On s)", "| q_not_handed_off s t : quiet (HandingOff s t) (On t)"),
    ("memory is allocated again while its free is still to come",
     "x = Fresh \\/ x = Freed -> move c b x (of_line l)", "x = Fresh \\/ x = Idle -> move c b x (of_line l)"),
]  # fmt: skip

# Changes of the same form that break nothing.
HARMLESS = [
    ("| m_record s n : c = Record s (Pool n) ->", "| m_record s n (t : nat) : c = Record s (Pool n) ->"),
    ("| m_wait l n : c = Wait l (Pool n) -> move c b (InTransit n)", "| m_wait l n (m : nat) : c = Wait l (Pool n) -> move c b (InTransit n)"),
    ("| m_use l rd wr : c = Use l rd wr ->", "| m_use l rd wr (m : line) : c = Use l rd wr ->"),
    ("| m_free l bs : c = Free l bs ->", "| m_free l bs (m : line) : c = Free l bs ->"),
    ("| m_unshared l p rs : c = Wait l (Pool p) ->", "| m_unshared l p rs (n : nat) : c = Wait l (Pool p) ->"),
]  # fmt: skip


def compile(text):
    """What coqc prints for a file of this text, or None and the error."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "Races.v")
        with open(file, "w", encoding="utf-8") as out:
            out.write(text)
        done = subprocess.run(["coqc", "-q", file], cwd=folder, capture_output=True, text=True)
    return (done.stdout if done.returncode == 0 else None), done.stderr


def changed(text, old, new):
    if text.count(old) != 1:
        sys.exit(f"Races.v has {text.count(old)} times, and not once: {old}")
    return text.replace(old, new)


def main():
    text = open(os.path.join(HERE, "Races.v"), encoding="utf-8").read()
    code = re.sub(r"\(\*.*?\*\)", "", text, flags=re.S)
    for word in re.findall(r"\b(?:Axioms?|Admitted|admit|Parameters?|Conjecture|Abort|bypass_check|Unset)\b", code):
        sys.exit(f"Races.v has the word {word}")
    if re.search(r"^(?:Variable|Hypothes[ie]s)", code, re.M):
        sys.exit("Races.v has a hypothesis outside of a section")
    for theorem in THEOREMS:
        if f"Print Assumptions {theorem}." not in code:
            sys.exit(f"Races.v does not print what {theorem} rests on")
    printed, error = compile(text)
    if printed is None:
        sys.exit(error)
    if printed.split("\n")[:-1] != [CLOSED] * len(THEOREMS):
        sys.exit(f"a theorem rests on something:\n{printed}")
    print(f"{' and '.join(THEOREMS)}: {CLOSED.lower()}")
    if "--quick" in sys.argv:
        return
    wrong = []
    page = open(os.path.join(HERE, "..", "..", "docs", "broken-rules.md"), encoding="utf-8").read()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        harmless = text[: text.index(EXAMPLES)]
        for old, new in HARMLESS:
            harmless = changed(harmless, old, new)
        texts = [changed(text, old, new) for _, old, new in BROKEN]
        for (name, *_), (printed, error) in zip(BROKEN, pool.map(compile, texts)):
            place = re.search(r"line (\d+)", error)
            inside = place and text[: text.index(PROOF)].count("\n") < int(place[1]) < text[: text.index(EXAMPLES)].count("\n")
            before = text.split("\n")[: int(place[1])] if place else []
            lemma = next((found[1] for line in reversed(before) if (found := re.match(r"\s*(?:Lemma|Theorem) (\w+)", line))), None)
            print(f"  {name}: " + ("THE PROOF STILL GOES THROUGH" if printed is not None else f"refused in {lemma}, line {place and place[1]}"))
            if printed is not None or not inside:
                wrong.append(name)
            elif f"{name} (`{lemma}`)" not in page:
                wrong.append(f"docs/broken-rules.md has another lemma than {lemma} for `{name}`")
        if compile(harmless)[0] is None:
            wrong.append("a harmless change is refused")
    if wrong:
        sys.exit(f"{len(wrong)} changes are not judged as they should be: {'; '.join(wrong)}")
    print(f"with each of {len(BROKEN)} broken rules the proof does not go through, and with harmless changes it does")


main()
