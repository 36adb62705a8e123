// Access: the tokens of the server, and the log of admin actions.

import { fill, h } from "../lib/dom.js";
import { get, isAbort, pages, poll, write } from "../lib/api.js";
import { ask, field } from "../lib/dialog.js";
import { ago, time, whole } from "../lib/format.js";
import { page } from "../lib/pages.js";
import { may, session } from "../lib/session.js";
import { table } from "../lib/table.js";
import { badge, copyButton, emptyView, errorView, notAllowed, tabs, toast } from "../lib/views.js";

const POLL_MS = 5_000;
const EVENTS = 200;
const DAY_S = 86_400;

const mayTokens = () => may("admin", "__ds/tokens");
const mayAudit = () => may("read", "__ds/audit");

page({
  name: "access",
  title: "Access",
  nav: "Access",
  order: 70,
  allowed: () => mayTokens() || mayAudit(),
  render,
});

async function render({ root, signal }) {
  root.append(h("div.page-head", h("h1", "Access")));
  if (session.principal.open) {
    root.append(
      emptyView(
        "This server is open",
        h(
          "span",
          "Everybody who reaches it may do everything. Start it with a root token to have tokens with rules: ",
          h("code", "PENSTOCK_TOKEN=… penstock serve"),
          ".",
        ),
      ),
    );
    return;
  }
  const panels = [
    ["tokens", "Tokens", (panel) => drawTokens(panel, signal)],
    ["audit", "Audit log", (panel) => drawAudit(panel, signal)],
  ];
  root.append(tabs("Parts of access", panels));
}

async function drawTokens(panel, signal) {
  if (!mayTokens()) return void panel.append(notAllowed("see tokens", "admin:__ds/tokens"));
  const problem = h("div");
  const tokens = table({
    caption: "Tokens",
    columns: columns((row) => revoke(row, load)),
    empty: () =>
      emptyView(
        "No tokens",
        "Only the root token and JWTs, if they are set up, are accepted. Create one for each program.",
      ),
  });
  async function load() {
    try {
      const rows = [];
      for await (const listing of pages("v1/tokens", {}, { signal })) rows.push(...listing.tokens);
      tokens.update(rows);
      fill(problem);
    } catch (error) {
      if (!isAbort(error)) fill(problem, errorView(error, load));
    }
  }
  panel.append(
    h(
      "div.controls",
      h("p.dim.grow", "The text of a token is shown once, when it is created."),
      h("button.primary", { type: "button", onclick: () => create(load) }, "Create token"),
    ),
    problem,
    tokens.element,
  );
  await load();
}

const columns = (onRevoke) => [
  {
    key: "name",
    title: "Name",
    sortable: true,
    cell: (row) => [row.name || h("span.dim", "without a name"), " ", h("code.dim", row.id)],
  },
  {
    key: "allow",
    title: "Rules",
    cell: (row) =>
      h(
        "ul.plain",
        row.allow.map((rule) => h("li", h("code", rule))),
      ),
  },
  {
    key: "created_at",
    title: "Created",
    wide: true,
    sortable: true,
    cell: (row) => h("span", { title: time(row.created_at) }, `${ago(row.created_at)} by ${row.created_by}`),
  },
  {
    key: "expires_at",
    title: "Expires",
    sortable: true,
    wide: true,
    cell: (row) => (row.expired ? badge("expired", "bad") : row.expires_at ? time(row.expires_at) : "never"),
  },
  {
    key: "revoke",
    title: "Action",
    cell: (row) => h("button.quiet", { type: "button", onclick: () => onRevoke(row) }, "Revoke"),
  },
];

async function create(load) {
  const token = await ask({
    title: "Create a token",
    confirm: "Create",
    fields: [
      field("Name", { name: "name", placeholder: "mailer", hint: "For you: which program uses it." }),
      field("Rules", {
        control: h("textarea", {
          name: "allow",
          rows: 3,
          required: true,
          placeholder: "read:chat/**\nappend:chat/42",
        }),
        hint: "One a line: a verb (read, append, create, delete, list, subscribe, follow, admin or *), a colon, and a pattern of paths.",
      }),
      field("Expires after days", {
        name: "days",
        inputmode: "numeric",
        pattern: "[0-9]*",
        value: "90",
        hint: "Empty: it does not expire.",
      }),
    ],
    action: (form) => {
      const days = form.get("days").trim();
      const allow = form
        .get("allow")
        .split("\n")
        .map((line) => line.trim())
        .filter(Boolean);
      return write("POST", "v1/tokens", {
        name: form.get("name").trim(),
        allow,
        expires_in: days ? Number(days) * DAY_S : null,
      });
    },
  });
  if (!token) return;
  await Promise.all([
    load(),
    ask({
      title: "The new token",
      confirm: "Done",
      fields: [
        h("p", "Copy it now: it is not shown again."),
        h("p", h("code", token.token), " ", copyButton(token.token)),
      ],
      action: () => true,
    }),
  ]);
}

async function revoke(row, load) {
  const done = await ask({
    title: "Revoke this token?",
    confirm: "Revoke",
    danger: true,
    fields: [h("p", `${row.name || row.id} is not accepted any more, at once; what it has open is ended.`)],
    action: () => write("DELETE", `v1/tokens/${encodeURIComponent(row.id)}`),
  });
  if (!done) return;
  toast("The token was revoked.");
  await load();
}

async function drawAudit(panel, signal) {
  if (!mayAudit()) return void panel.append(notAllowed("read the audit log", "read:__ds/audit"));
  const problem = h("div");
  const events = table({
    caption: "Audit log",
    columns: AUDIT,
    empty: "Nothing was done yet that is audited.",
  });
  panel.append(h("p.dim", `The last ${whole(EVENTS)} admin actions, newest first.`), problem, events.element);
  await poll(POLL_MS, signal, async () => {
    try {
      events.update((await get("v1/audit", { tail: EVENTS }, { signal })).reverse());
      fill(problem);
    } catch (error) {
      if (isAbort(error)) throw error;
      fill(problem, errorView(error));
    }
  });
}

const AUDIT = [
  { key: "time", title: "Time", cell: (row) => h("time", { datetime: row.time }, time(row.time)) },
  { key: "principal", title: "Who", cell: (row) => row.principal },
  { key: "action", title: "Action", cell: (row) => row.action },
  { key: "path", title: "Where", cell: (row) => h("code", row.path) },
  {
    key: "status",
    title: "Status",
    numeric: true,
    cell: (row) => (row.status < 400 ? row.status : badge(String(row.status), "bad")),
  },
  { key: "address", title: "Address", wide: true, cell: (row) => row.address },
];
