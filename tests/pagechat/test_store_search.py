"""What a search finds, in languages with and without spaces between words."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagechat.store import Store

TEXTS = [
    "使用Python编写一个程序",
    "ผมชอบหน่วยความจำเสมือนของ Linux",
    "私は仮想記憶が好きです",
    "ខ្ញុំចូលចិត្តកុំព្យូទ័រ",
    "가상 메모리를 좋아해요",
    "Le RÉSUMÉ of a page table",
    "POL-358 don't gpt-4o a:b (x \" C++ -> * end",
    "ＦＵＬＬ width，全角",
    "a rocket 🚀 flies",
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "chats.db")
    chat = store.create_chat("all").id
    for text in TEXTS:
        store.add_message(chat, "user", text)
    return store


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("编写", [0]),
        ("python", [0]),
        ("PYTHON 编写", [0]),
        ("编写 python", [0]),
        ("pyth", [0]),
        ("ython", []),
        ("程", [0]),
        ("หน่วย", [1]),
        ("เสมือน", [1]),
        ("LINUX หน่วย", [1]),
        ("linux", [1]),
        ("仮想", [2]),
        ("好き", [2]),
        ("កុំព្យូទ័រ", [3]),
        ("메모리", [4]),
        ("resume", [5]),
        ("Résumé TABLE", [5]),
        ("able", []),
        ("pol-358", [6]),
        ("c++ ->", [6]),
        ("->", [6]),
        ("don't", [6]),
        ("full", [7]),
        ("全角 WIDTH", [7]),
        ("🚀", [8]),
        ("rocket 🚀", [8]),
        ("编写 linux", []),
        ("\ud800", []),
    ],
)
def test_words_are_found_whatever_their_case(store: Store, words: str, found: list[int]) -> None:
    assert [hit.message_id - 1 for hit in store.search(words)] == found


def test_an_excerpt_shows_the_word_as_it_was_written(store: Store) -> None:
    (hit,) = store.search("PYTHON")
    assert hit.excerpt == "使用\ue000Python\ue001编写一个程序"
    (hit,) = store.search("full")
    assert hit.excerpt == "\ue000ＦＵＬＬ\ue001 width，全角"


def test_a_deleted_message_is_not_found(store: Store) -> None:
    chat = store.chats()[0].id
    store.delete_chat(chat)
    assert store.search("编写") == []
