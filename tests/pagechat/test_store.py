"""Chats survive whatever happens to the process that writes them."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pagechat import store as store_module
from pagechat import store_schema
from pagechat.store import Draft, Store, StoreError, StoreReplaced


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "chats.db"


def test_the_default_path_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGECHAT_DATA_DIR", str(tmp_path / "elsewhere"))
    assert Store().path == tmp_path / "elsewhere" / "chats.db"


def test_the_file_and_its_folder_are_private(path: Path) -> None:
    Store(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_messages_come_back_in_order_with_their_facts(path: Path) -> None:
    store = Store(path)
    chat = store.create_chat("essay")
    store.add_message(chat.id, "user", "why?")
    answer = store.add_message(chat.id, "assistant", "", "streaming")
    store.update_message(answer, "because", "complete", {"completion_tokens": 1})
    store.close()

    messages = Store(path).messages(chat.id)

    assert [(m.role, m.content, m.status) for m in messages] == [
        ("user", "why?", "complete"),
        ("assistant", "because", "complete"),
    ]
    assert messages[1].facts == {"completion_tokens": 1}


def test_chats_are_listed_last_used_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(path)
    clock = iter(range(100))
    monkeypatch.setattr(store_module.time, "time", lambda: float(next(clock)))
    old, new = store.create_chat("old"), store.create_chat("new")
    assert [chat.id for chat in store.chats()] == [new.id, old.id]
    store.add_message(old.id, "user", "hello again")
    assert [chat.id for chat in store.chats()] == [old.id, new.id]


def test_creating_a_chat_that_exists_changes_nothing(path: Path) -> None:
    store = Store(path)
    store.create_chat("first", "my-session")
    store.add_message("my-session", "user", "hi")
    assert store.create_chat("second", "my-session").title == "first"
    assert len(store.messages("my-session")) == 1


def test_rename_and_delete(path: Path) -> None:
    store = Store(path)
    chat = store.create_chat("a")
    message = store.add_message(chat.id, "user", "hi")
    store.rename_chat(chat.id, "b")
    assert store.find_chat(chat.id).title == "b"  # type: ignore[union-attr]
    store.delete_chat(chat.id)
    assert store.find_chat(chat.id) is None
    assert store.messages(chat.id) == []
    store.update_message(message, "late", "complete")  # an answer still being written: no error, and no ghost
    assert store.messages(chat.id) == []


def test_a_message_for_no_chat_is_an_error(path: Path) -> None:
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        Store(path).add_message("nowhere", "user", "hi")


def test_any_text_can_be_stored(path: Path) -> None:
    store = Store(path)
    chat = store.create_chat("t")
    store.add_message(chat.id, "user", "nul \0 and 👍 and a lone \udce4")
    assert store.messages(chat.id)[0].content == "nul \0 and 👍 and a lone ?"


def test_open_tabs_come_back_without_deleted_chats(path: Path) -> None:
    store = Store(path)
    one, two = store.create_chat("one"), store.create_chat("two")
    store.set_open_tabs([one.id, two.id], two.id)
    assert Store(path).open_tabs() == ([one.id, two.id], two.id)
    store.delete_chat(two.id)
    assert Store(path).open_tabs() == ([one.id], None)


KILLED = """
import sys, time
from pathlib import Path
from pagechat.store import Store
store = Store(Path(sys.argv[1]))
chat = store.create_chat("essay", "essay")
store.add_message("essay", "user", "why?")
answer = store.add_message("essay", "assistant", "", "streaming")
text = ""
for number in range(10**6):
    text += f"word{number} "
    store.update_message(answer, text, "streaming")
    print(number, flush=True)
"""


def test_an_answer_half_written_survives_kill_9(path: Path) -> None:
    # given a process that is writing an answer
    writer = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    while (line := writer.stdout.readline()) and int(line) < 20:
        pass

    # while it lives, the answer is its own
    assert Store(path).messages("essay")[1].status == "streaming"

    # when it is killed
    writer.send_signal(signal.SIGKILL)
    writer.wait()

    # then the next one to look finds the answer stopped, with everything that was acknowledged
    question, answer = Store(path).messages("essay")
    assert (question.content, question.status) == ("why?", "complete")
    assert answer.status == "stopped"
    assert answer.content.startswith("word0 word1 ")
    assert "word20 " in answer.content


def test_a_recycled_pid_does_not_own_an_old_answer(path: Path) -> None:
    store = Store(path)
    chat = store.create_chat("t")
    store.add_message(chat.id, "assistant", "half", "streaming")
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE messages SET writer = ?", (f"{os.getpid()}:1:another-boot",))
    assert Store(path).messages(chat.id)[0].status == "stopped"


def test_a_locked_file_is_an_error_and_works_again_afterwards(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY_TIMEOUT_S", 0.05)
    store = Store(path)
    chat = store.create_chat("t")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        store.add_message(chat.id, "user", "hi")
    other.execute("ROLLBACK")
    store.add_message(chat.id, "user", "hi")
    assert [m.content for m in store.messages(chat.id)] == ["hi"]


def test_a_deleted_file_is_noticed_not_written_into_the_void(path: Path) -> None:
    store = Store(path)
    chat = store.create_chat("t")
    for file in path.parent.iterdir():
        file.unlink()
    with pytest.raises(StoreReplaced):
        store.add_message(chat.id, "user", "hi")
    again = store.create_chat("t", chat.id)
    store.add_message(again.id, "user", "hi")
    assert [m.content for m in Store(path).messages(chat.id)] == ["hi"]


def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer pagechat"):
        Store(path)


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("this is not SQLite, whatever its name says" * 100)
    with pytest.raises(StoreError, match="not a database"):
        Store(path)


def test_several_threads_and_stores_write_at_once(path: Path) -> None:
    stores = [Store(path), Store(path)]
    chat = stores[0].create_chat("t")

    def write(store: Store) -> None:
        for _ in range(20):
            store.add_message(chat.id, "user", "x")

    threads = [threading.Thread(target=write, args=(store,)) for store in stores for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores[0].messages(chat.id)) == 80


def test_a_file_of_version_1_is_brought_up_to_date_with_everything_in_it(path: Path) -> None:
    # given a history as version 0.1 before forks and search wrote it
    path.parent.mkdir()
    with sqlite3.connect(path) as old:
        old.executescript(store_schema._TABLES + "PRAGMA user_version = 1;")
        old.execute("INSERT INTO chats VALUES ('essay', 'essay', 1, 1)")
        old.execute(
            "INSERT INTO messages (chat_id, role, content, status, writer, created) "
            "VALUES ('essay', 'user', 'a page table', 'complete', '1', 1)"
        )
    store = Store(path)
    assert [(chat.title, chat.settings, chat.parent) for chat in store.chats()] == [("essay", {}, None)]
    assert [hit.message_id for hit in store.search("page")] == [store.messages("essay")[0].id]
    store.set_priority("essay", 1)
    assert [chat.priority for chat in Store(path).chats()] == [1]


def test_a_file_of_version_2_keeps_its_chats_and_gets_priorities(path: Path) -> None:
    # given a history of before priorities were kept
    path.parent.mkdir()
    with sqlite3.connect(path) as old:
        old.executescript(store_schema._TABLES + store_schema._VERSION_2 + "PRAGMA user_version = 2;")
        old.execute(
            "INSERT INTO chats (id, title, created, updated, settings, parent, forked_at) "
            "VALUES ('essay', 'essay', 1, 1, '{\"temperature\":0.5}', 'other', 4)"
        )
    (chat,) = Store(path).chats()
    assert (chat.settings, chat.parent, chat.forked_at, chat.priority) == ({"temperature": 0.5}, "other", 4, 0)


def test_search_finds_beginnings_of_words_whatever_their_case_and_accents(path: Path) -> None:
    store = Store(path)
    chat = store.create_chat("t")
    for text in ("A Page table", "pages\nand PAGING", "le résumé", "nothing of the kind"):
        store.add_message(chat.id, "user", text)
    assert {hit.excerpt for hit in store.search("pag")} == {
        "A \ue000Page\ue001 table",
        "\ue000pages\ue001 and \ue000PAGING\ue001",
    }
    assert len(store.search("page table")) == 1
    assert [hit.excerpt for hit in store.search("resume")] == ["le \ue000résumé\ue001"]
    assert store.search("  ") == []


def test_search_takes_any_text_for_words(path: Path) -> None:
    store = Store(path)
    chat = store.create_chat("t")
    store.add_message(chat.id, "user", 'say "OR" (x) -- NEAR*')
    for words in ('"OR"', "(x)", "NEAR*", 'say "', "content:say", "a AND"):
        store.search(words)
    assert store.search('"OR" say')


def test_search_finds_words_of_languages_without_spaces(path: Path) -> None:
    store = Store(path)
    chat = store.create_chat("t")
    store.add_message(chat.id, "user", "私は仮想記憶が好きです")
    assert [hit.excerpt for hit in store.search("仮想")] == ["私は\ue000仮想\ue001記憶が好きです"]


def test_search_knows_an_answer_once_it_is_complete_and_forgets_what_was_deleted(path: Path) -> None:
    store = Store(path)
    chat = store.create_chat("t")
    answer = store.add_message(chat.id, "assistant", "", "streaming")
    store.update_message(answer, "paging", "streaming")
    assert store.search("paging") == []
    store.update_message(answer, "paging it is", "complete")
    assert len(store.search("paging")) == 1
    store.hide_message(answer)
    assert store.search("paging") == []
    store.hide_message(answer, hidden=False)
    store.hide_chat(chat.id)
    assert store.search("paging") == []
    store.delete_chat(chat.id)
    assert store.search("paging") == []


def test_what_was_deleted_comes_back_to_its_place_until_it_is_purged(path: Path) -> None:
    store = Store(path)
    chat = store.create_chat("t")
    ids = [store.add_message(chat.id, "user", text) for text in ("one", "two", "three")]
    store.hide_message(ids[1])
    assert [m.content for m in store.messages(chat.id)] == ["one", "three"]
    store.hide_message(ids[1], hidden=False)
    assert [m.content for m in store.messages(chat.id)] == ["one", "two", "three"]
    store.hide_chat(chat.id)
    assert (store.chats(), store.find_chat(chat.id)) == ([], None)
    store.hide_chat(chat.id, hidden=False)
    assert store.find_chat(chat.id) == store.chats()[0]
    store.hide_message(ids[0])
    store.purge()
    store.hide_message(ids[0], hidden=False)
    assert [m.content for m in store.messages(chat.id)] == ["two", "three"]


def test_a_chat_remembers_its_settings_its_priority_and_what_it_was_forked_from(path: Path) -> None:
    store = Store(path)
    parent = store.create_chat("essay")
    child = store.create_chat("essay'", parent=parent.id, forked_at=4)
    store.set_settings(child.id, {"system": "Be brief.", "temperature": 0.2})
    store.set_priority(child.id, -2)
    found = Store(path).find_chat(child.id)
    assert found is not None
    assert (found.settings, found.parent, found.forked_at, found.priority) == (
        {"system": "Be brief.", "temperature": 0.2},
        parent.id,
        4,
        -2,
    )


def test_waiting_prompts_come_back_and_go_with_their_chat(path: Path) -> None:
    store = Store(path)
    store.create_chat("a", "one")
    store.set_queue("one", ["first", "line\nline \ud800"])
    assert Store(path).queue("one") == ["first", "line\nline ?"]
    store.set_queue("one", ["second"])
    assert store.queue("one") == ["second"]
    store.set_queue("one", [])
    assert store.recall("queue:one") is None
    for chat, remove in (("one", lambda: store.delete_chat("one")), ("two", store.purge)):
        store.create_chat("a", chat)
        store.set_queue(chat, ["left"])
        store.hide_chat(chat)
        remove()
        assert store.queue(chat) == []


def test_a_file_of_version_3_keeps_the_prompts_that_waited(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as old:
        scripts = store_schema._TABLES + store_schema._VERSION_2 + store_schema._VERSION_3
        old.executescript(scripts + "PRAGMA user_version = 3;")
        for chat in ("essay", "broken"):
            old.execute("INSERT INTO chats (id, title, created, updated) VALUES (?, ?, 1, 1)", (chat, chat))
        old.execute(
            "INSERT INTO messages (chat_id, role, content, status, writer, created) "
            "VALUES ('essay', 'user', 'hello', 'complete', '1', 1)"
        )
        old.execute("""INSERT INTO state VALUES ('queue:essay', '["one", "two"]')""")
        old.execute("INSERT INTO state VALUES ('queue:broken', '[')")
        old.execute("INSERT INTO state VALUES ('queue:none', '[\"x\"]')")
        old.execute("INSERT INTO state VALUES ('tabs', '[[\"essay\"], \"essay\"]')")
    store = Store(path)
    assert (store.queue("essay"), store.queue("broken")) == (["one", "two"], [])
    assert store.open_tabs() == (["essay"], "essay")
    assert [message.content for message in store.messages("essay")] == ["hello"]
    assert store.recall("queue:essay") is None
    store.add_message("essay", "user", "more")
    assert [news.chat.id for news in store.news({"essay": 0, "broken": 0})] == ["essay"]


def test_a_deleted_chat_comes_back_whole_or_begins_afresh(path: Path) -> None:
    store = Store(path)
    for chat in ("one", "two"):
        store.create_chat("first", chat)
        store.add_message(chat, "user", "hi")
        store.hide_chat(chat)
    assert store.create_chat("second", "one").title == "first"
    assert [message.content for message in store.messages("one")] == ["hi"]
    assert store.create_chat("second", "two", afresh=True).title == "second"
    assert store.messages("two") == []
    assert store.create_chat("third", "one", afresh=True).title == "first"  # it is there: nothing begins


def test_only_what_was_deleted_long_ago_is_purged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = Store(path), [1000.0]
    monkeypatch.setattr(store_module.time, "time", lambda: now[0])
    store.create_chat("a", "old")
    store.create_chat("b", "new")
    messages = [store.add_message("new", "user", text) for text in ("early", "late")]
    store.hide_chat("old")
    store.hide_message(messages[0])
    now[0] = 2000.0
    store.hide_message(messages[1])
    store.hide_chat("new")
    store.purge(older_than_s=500)
    assert store.hide_chat("new", hidden=False)
    assert not store.hide_chat("old", hidden=False)
    assert [store.hide_message(one, hidden=False) for one in messages] == [False, True]


def test_a_transaction_of_several_writes_happens_as_a_whole_or_not_at_all(path: Path) -> None:
    store = Store(path)
    store.create_chat("t", "t")

    def two_writes() -> None:
        with store.together():
            store.add_message("t", "user", "one")
            store.add_message("nowhere", "user", "two")

    with pytest.raises(StoreError):
        two_writes()
    assert store.messages("t") == []
    with store.together():
        store.add_message("t", "user", "one")
        store.set_queue("t", ["two"])
    assert (len(store.messages("t")), store.queue("t")) == (1, ["two"])


def test_a_hurried_store_waits_for_no_lock(path: Path) -> None:
    store = Store(path)
    store.create_chat("t", "t")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(0.2, store.hurry).start()
    began = time.monotonic()
    with pytest.raises(StoreError, match="locked"):
        store.add_message("t", "user", "hi")
    assert time.monotonic() - began < 2  # not BUSY_TIMEOUT_S
    other.execute("ROLLBACK")


def test_the_version_of_the_data_changes_with_what_others_write(path: Path) -> None:
    store, other = Store(path), Store(path)
    store.create_chat("t", "t")
    before = store.data_version()
    store.add_message("t", "user", "mine")
    assert store.data_version() == before
    other.add_message("t", "user", "theirs")
    assert store.data_version() != before


def test_a_living_window_keeps_its_tabs_and_one_that_was_killed_leaves_them(path: Path) -> None:
    one, two = Store(path), Store(path)
    for chat in "abc":
        one.create_chat(chat, chat)
    one.set_open_tabs(["a"], "a")
    assert one.enter() == (["a"], "a")
    assert two.enter() == ([], None)
    two.set_open_tabs(["b", "c"], "c")
    assert one.open_elsewhere() == {"b", "c"}
    with sqlite3.connect(path) as db:  # as after a kill -9
        db.execute("UPDATE windows SET name = '1:1:another-boot' WHERE name = ?", (two.window,))
    third = Store(path)
    assert third.enter() == (["b", "c"], "c")
    third.leave()
    one.leave()
    assert Store(path).open_tabs() == (["b", "c", "a"], "a")


def test_drafts_are_kept_and_odd_text_with_them(path: Path) -> None:
    store = Store(path)
    store.create_chat("t \udc80", "t")
    store.set_draft("t", Draft(text="half \ud800", edit_of=7, edit="other"))
    assert Store(path).draft("t") == Draft(text="half ?", edit_of=7, edit="other")
    store.set_draft("t", Draft())
    assert store.draft("t") == Draft()
    store.set_settings("t", {"system": "\udc80"})
    answer = store.add_message("t", "assistant", "x", "streaming")
    store.update_message(answer, "x", "error", {"error": "quoting \udc80", "more": [{"a": "\ud800"}]})
    assert store.messages("t")[0].facts == {"error": "quoting ?", "more": [{"a": "?"}]}
