"""Write made-up support tickets for the tutorial: some with their queue, and new ones without.

The sentences are put together at random from hand-written parts, so they are tidier than real ones. One ticket in
twenty-five is about two things at once and may be in either queue. Run: python examples/tickets.py FOLDER
"""

import csv
import random
import sys
from collections.abc import Iterator
from pathlib import Path

QUEUES = {
    "billing": (
        "I was charged twice for {thing}",
        "the invoice for {thing} shows the wrong amount",
        "my card was debited although I cancelled {thing}",
        "the discount code was not applied when I paid for {thing}",
        "I need an invoice with our VAT number for {thing}",
        "the refund for {thing} has not arrived in my bank account",
        "the price of {thing} on my bill is higher than in the shop",
        "please change the payment method for {thing} to direct debit",
        "I received a payment reminder for {thing} that I already paid",
        "how can I pay for {thing} in monthly instalments",
    ),
    "delivery": (
        "{thing} has not arrived",
        "the tracking page says {thing} was delivered, but nothing is here",
        "the courier left {thing} at the wrong address",
        "{thing} came in a box that was torn open",
        "please send {thing} to my office instead of my home",
        "when will {thing} be shipped",
        "the parcel with {thing} is stuck at customs",
        "I was not at home and the driver took {thing} away again",
        "only half of the parcels with {thing} were delivered",
        "can I collect {thing} from the depot myself",
    ),
    "account": (
        "I cannot log in to see {thing}",
        "the password reset mail for my account never comes",
        "please delete my account and everything about {thing}",
        "my account is locked after I looked at {thing}",
        "how do I change the email address I use for {thing}",
        "the app signs me out whenever I open {thing}",
        "two-factor codes are rejected when I log in to register {thing}",
        "someone else seems to be using my account to look at {thing}",
        "I have two accounts and want to merge them, one has {thing}",
        "my profile shows the wrong name next to {thing}",
    ),
}
BETWEEN = {  # what may be in either of two queues
    ("billing", "delivery"): "I want my money back, {thing} was never delivered",
    ("delivery", "account"): "my account still has the old address, so {thing} went there",
    ("billing", "account"): "I cannot log in to download the invoice for {thing}",
}
THINGS = (
    *("the coffee machine", "my new headphones", "the garden chairs", "a pair of boots", "the standing desk"),
    *("the winter coat", "two monitors", "the bicycle lamp", "a set of knives", "the baby carrier", "my last order"),
    *("order 48210", "order 77315", "the espresso cups", "the printer", "the yoga mat", "the bookshelf"),
)
OPENINGS = ("Hello, ", "Hi there, ", "Good morning, ", "Dear team, ", "", "", "")
CLOSINGS = (
    *("", "", "Please help.", "Thank you.", "This is the second time I ask.", "What can I do?", "It is urgent."),
    *("I look forward to your answer.", "Kind regards", "Please call me back."),
)
OTHERS = (  # no queue is right for these
    "We are a newspaper and would like to interview your head of sales about the market for furniture.",
    "I would like to apply for the position of warehouse manager, my CV is attached.",
    "Congratulations, you have been selected to receive a free holiday, click the link now.",
    "Bonjour, avez-vous un magasin à Lyon et quels sont vos horaires d'ouverture ?",
    "Our agency builds links to your site and will bring you to the first page of every search engine.",
    "I dropped soup on the keyboard of my laptop, which key combination reboots it?",
    "Is it true that your founder used to play in a rock band?",
    "The cat has been sitting on the box all day and looks very pleased with itself.",
)


def tickets(n: int, seed: int) -> Iterator[tuple[str, str]]:
    """Different tickets with their queues."""
    rng, seen = random.Random(seed), set()
    while len(seen) < n:
        if rng.random() < 0.04:
            queues, problem = rng.choice(list(BETWEEN.items()))
            queue = rng.choice(queues)
        else:
            queue = rng.choice(list(QUEUES))
            problem = rng.choice(QUEUES[queue])
        said = rng.choice(OPENINGS) + problem.format(thing=rng.choice(THINGS))
        text = f"{said[0].upper()}{said[1:]}. {rng.choice(CLOSINGS)}".strip()
        if text not in seen:
            seen.add(text)
            yield text, queue


def write(path: Path, columns: list[str], rows: list[tuple[str, ...]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    print(f"{path}: {len(rows)} tickets")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    known = list(tickets(600, seed=1))
    write(folder / "tickets.csv", ["ticket", "queue"], known)
    write(folder / "few.csv", ["ticket", "queue"], known[:150])
    told = {text for text, _ in known}
    later = [text for text, _ in tickets(120, seed=2) if text not in told][:60] + list(OTHERS)
    write(folder / "new.csv", ["id", "ticket"], [(f"T{number}", text) for number, text in enumerate(later, start=1)])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "tickets"))
