// What is around every page: navigation, search, theme, who is signed in; and the form to sign in.

import { fill, h, visible } from "./dom.js";
import { send, url } from "./api.js";
import { leave, link, navigate, navigation, show } from "./pages.js";
import { session } from "./session.js";
import { errorView } from "./views.js";

const holder = () => document.getElementById("console");

/** Ask the server who this is, and show the console or the form to sign in. */
export async function start() {
  session.onEnd((error) => signIn(error));
  await enter();
}

async function enter() {
  try {
    session.principal = await (await send(url("v1/session"), { keepSession: true })).json();
  } catch (error) {
    if (error.status === 401) return signIn();
    fill(holder(), h("main#main.alone", { tabindex: -1 }, h("h1", "Penstock"), errorView(error, enter)));
    return;
  }
  frame();
}

function frame() {
  const main = h("main#main", { tabindex: -1 });
  const nav = h("nav", { "aria-label": "Pages" });
  const links = navigation().map((page) =>
    h("a", { href: link(page.name), "data-page": page.name }, page.nav),
  );
  nav.append(...links, h("a", { href: url("docs").href, title: "The API, its errors, first steps" }, "Docs"));
  const search = h("input#search", {
    type: "search",
    name: "q",
    placeholder: "Find a stream",
    "aria-label": "Find a stream",
    autocomplete: "off",
    spellcheck: "false",
  });
  const finder = h("form.finder", { role: "search" }, search, h("kbd", { "aria-hidden": true }, "/"));
  finder.addEventListener("submit", (event) => {
    event.preventDefault();
    navigate("streams", "", { q: search.value.trim() });
  });
  const banner = h(
    "header.bar",
    h(
      "a.brand",
      { href: link("overview"), "aria-label": "Penstock, overview" },
      h("span.mark", { "aria-hidden": true }),
      "Penstock",
    ),
    nav,
    finder,
    h("div.who", who(), themeSwitch()),
  );
  fill(holder(), banner, main, h("div#toast", { role: "status" }));
  const options = {
    onTitle: (text) => (document.title = `${visible(text)} · Penstock`),
    onShown: (name) => {
      for (const each of links) {
        const isCurrent =
          each.dataset.page === name || (name === "stream" && each.dataset.page === "streams");
        if (isCurrent) each.setAttribute("aria-current", "page");
        else each.removeAttribute("aria-current");
        if (isCurrent) each.scrollIntoView({ block: "nearest", inline: "nearest" }); // on a phone they are a strip
      }
    },
  };
  let drawn = false;
  const draw = () => {
    // The skip link is an address as well.
    if (location.hash === "#main") return main.focus();
    show(main, options);
    if (drawn) main.focus({ preventScroll: true });
    window.scrollTo(0, 0);
    drawn = true;
  };
  window.onhashchange = draw;
  draw();
}

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (
    event.key === "/" &&
    !isTyping &&
    !event.ctrlKey &&
    !event.metaKey &&
    !event.altKey &&
    !document.querySelector("dialog[open]")
  ) {
    const search = document.querySelector(".page [type=search]") ?? document.getElementById("search");
    if (search) {
      event.preventDefault();
      search.focus();
      search.select();
    }
  }
});

// The skip link must not become a page.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main")?.focus();
});

function who() {
  const { principal, open, anonymous } = session.principal;
  if (open)
    return h(
      "span.principal",
      { title: "Everybody who reaches this server may do everything." },
      "Open server",
    );
  const name = h("span.principal", { title: session.principal.rules.join("\n") }, principal);
  return [
    name,
    h(
      "button.quiet",
      { type: "button", onclick: anonymous ? () => signIn() : signOut },
      anonymous ? "Sign in" : "Sign out",
    ),
  ];
}

async function signOut() {
  const { cookies } = session.principal;
  leave();
  session.token = null;
  session.principal = null;
  if (cookies) {
    try {
      await send(url("v1/session"), { method: "DELETE", keepSession: true });
    } catch (error) {
      return signIn(error);
    }
  }
  await enter();
}

function signIn(error = null) {
  leave();
  window.onhashchange = null;
  const token = h("input", {
    type: "password",
    name: "token",
    required: true,
    autocomplete: "current-password",
    spellcheck: "false",
  });
  const stay = h("input", { type: "checkbox", name: "stay" });
  const problem = h("div", error && error.status !== undefined && session.token === null && errorView(error));
  const button = h("button.primary", { type: "submit" }, "Sign in");
  const form = h(
    "form.sign-in",
    h("h1", "Sign in to Penstock"),
    h(
      "p",
      "This server asks for a token. The operator makes one with ",
      h("code", "penstock token create"),
      ".",
    ),
    h("label.field", h("span", "Token"), token),
    h("label.check", stay, h("span", "Stay signed in in this browser, by a cookie")),
    problem,
    button,
    h("p.fine", "Without the cookie the token is kept in this page alone, and forgotten with it."),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    fill(problem);
    try {
      await useToken(token.value.trim(), stay.checked);
      return frame();
    } catch (failure) {
      session.token = null;
      fill(problem, failure.status === 401 ? wrongToken(failure) : errorView(failure));
      button.disabled = false;
      token.focus();
      token.select();
    }
  });
  document.title = "Sign in · Penstock";
  fill(holder(), h("main#main.alone", { tabindex: -1 }, form));
  token.focus();
}

const wrongToken = (failure) =>
  h(
    "div.notice.error",
    { role: "alert" },
    h("strong", "This token is not accepted"),
    h("p", "Copy it again, whole, or ask for another one: a token can expire and be revoked."),
    h("p.fine", `The server says: ${failure.message}`),
  );

/** Sign in: with a cookie if that is asked for and the server takes them, else with the token itself. */
async function useToken(token, stay) {
  if (!/^[\x21-\x7e]+$/.test(token))
    throw new Error("A token has no spaces and no letters beyond ASCII. Copy it again.");
  const headers = { Authorization: `Bearer ${token}` };
  const principal = await (await send(url("v1/session"), { headers, keepSession: true })).json();
  if (stay) {
    if (!principal.cookies)
      throw new Error("This server takes no cookies (see its setting cookies). Sign in without.");
    await send(url("v1/session"), { method: "POST", headers, keepSession: true });
  }
  session.token = stay ? null : token;
  session.principal = principal;
}

function themeSwitch() {
  const names = { light: "Light", dark: "Dark", system: "System" };
  const element = h(
    "select.quiet",
    { "aria-label": "Theme" },
    Object.entries(names).map(([value, text]) => h("option", { value }, text)),
  );
  element.value = document.documentElement.dataset.theme ?? "system";
  element.addEventListener("change", () => {
    const theme = element.value;
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("penstock-theme", theme);
    } catch {
      // Storage is off: the choice lasts as long as the page.
    }
  });
  return element;
}
