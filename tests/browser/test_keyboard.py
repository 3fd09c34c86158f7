"""The page without a mouse, and for those who cannot see it."""

from __future__ import annotations

from hpx.run import Run
from tests.browser.conftest import Open, moe
from tests.browser.driver import Page


def chosen(page: Page) -> str:
    return page.text(".row.chosen .label")


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.press(key)


def start(page: Page) -> Page:
    page.evaluate("document.querySelector('#tree').focus()")
    return page


def test_arrows_walk_through_the_rows(show: Open) -> None:
    page = start(show(moe()))
    press(page, "ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp")
    assert chosen(page) == "layers.0-2"


def test_left_and_right_close_and_open(show: Open) -> None:
    page = start(show(moe()))
    press(page, "ArrowDown", "ArrowDown", "ArrowLeft")
    assert page.texts(".row .label") == ["embed.weight", "layers.0-2", "norm.weight"]
    press(page, "ArrowRight", "ArrowRight")
    assert chosen(page) == "attn"
    press(page, "ArrowRight")
    assert chosen(page) == "q.weight"
    press(page, "ArrowLeft")
    assert chosen(page) == "attn"


def test_home_and_end_go_to_the_ends(show: Open) -> None:
    page = start(show(moe()))
    press(page, "End")
    assert chosen(page) == "norm.weight"
    press(page, "Home")
    assert chosen(page) == "embed.weight"


def test_enter_shows_details_and_escape_hides_them(show: Open) -> None:
    page = start(show(moe()))
    press(page, "ArrowDown", "Enter")
    assert page.text("#panel .path code") == "embed.weight"
    press(page, "Escape")
    assert page.evaluate("document.querySelector('#panel').hidden")
    assert page.evaluate("document.activeElement.id") == "tree"


def test_a_slash_begins_a_search_and_enter_goes_to_its_finds(show: Open) -> None:
    page = start(show(moe()))
    press(page, "/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.write("attn.q")
    press(page, "Enter")
    assert chosen(page) == "layers.0-2.attn.q.weight"
    assert page.evaluate("document.activeElement.id") == "tree"


def test_a_slash_in_the_search_is_a_slash(show: Open) -> None:
    page = start(show(moe()))
    press(page, "/", "/")
    assert page.evaluate("document.querySelector('#search').value") == "/"


def test_escape_ends_a_search(show: Open) -> None:
    page = start(show(moe()))
    press(page, "/")
    page.write("attn.q")
    press(page, "Enter", "/", "Escape")
    assert page.evaluate("document.querySelector('#search').value") == ""
    assert "embed.weight" in page.texts(".row .label")


def test_c_copies_the_name(show: Open) -> None:
    page = start(show(moe()))
    page.allow_clipboard()
    press(page, "ArrowDown", "c")
    page.wait("document.querySelector('#said').textContent")
    assert page.evaluate("navigator.clipboard.readText()") == "embed.weight"


def test_rows_are_items_of_a_tree(show: Open) -> None:
    page = start(show(moe()))
    press(page, "ArrowDown", "ArrowDown")
    row = page.evaluate(
        """(() => {
          const row = document.querySelector('.row.chosen');
          return ['role', 'aria-level', 'aria-expanded', 'aria-selected', 'aria-setsize',
            'aria-posinset', 'id'].map((name) => row.getAttribute(name));
        })()"""
    )
    assert row == ["treeitem", "1", "true", "true", "3", "2", "row-1"]
    tree = page.evaluate(
        """['role', 'tabindex', 'aria-activedescendant']
          .map((name) => document.querySelector('#tree').getAttribute(name))"""
    )
    assert tree == ["tree", "0", "row-1"]


def test_every_control_has_a_name(show: Open, moe_run: Run) -> None:
    page = show(moe_run)
    page.click(".row .label", "q.weight")
    nameless = page.evaluate(
        """[...document.querySelectorAll('button, input, select')].filter((control) =>
          !control.textContent.trim() && !control.labels?.length && !control.ariaLabel).length"""
    )
    assert nameless == 0


def test_the_focus_is_seen(show: Open) -> None:
    page = show(moe())
    page.press("Tab")
    page.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_texts_stand_out_from_what_is_behind_them(show: Open, moe_run: Run) -> None:
    for dark in (False, True):
        page = show(moe_run, dark=dark)
        page.click(".row .label", "q.weight")
        assert page.evaluate(_LEAST_CONTRAST) >= 4.5, "dark" if dark else "light"


_LEAST_CONTRAST = """(() => {
  const parts = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = color.map((part) => {
      const x = part / 255;
      return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parts(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color.slice(0, 3);
    }
    return [255, 255, 255];
  };
  let least = 21;
  const words = [...document.querySelectorAll('body *')].filter((element) =>
    [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()) &&
    element.getClientRects().length && !element.closest(':disabled, option, script, style'));
  for (const element of words) {
    const front = light(parts(getComputedStyle(element).color).slice(0, 3));
    const back = light(behind(element));
    least = Math.min(least, (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05));
  }
  return least;
})()"""
