// The same request elsewhere: as curl, Python and JavaScript, quoted so that it can be pasted.

import { h } from "../../lib/dom.js";
import { root, streamUrl } from "../../lib/api.js";
import { session } from "../../lib/session.js";
import { copyButton } from "../../lib/views.js";

/** A word for a POSIX shell. */
export const shellQuote = (text) =>
  /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;

/** A string for JavaScript, and for Python. */
export const quote = (text) =>
  JSON.stringify(text).replace(
    /[\u007f-\uffff]/g,
    (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );

/** Return [title, code] of each way to read and to append. */
export function examples(stream) {
  const address = streamUrl(stream.path).href;
  const server = root.href.replace(/\/$/, "");
  const needsToken = !session.principal.open;
  const header = needsToken ? ` -H "Authorization: Bearer $PENSTOCK_TOKEN"` : "";
  const body = stream.isJson ? '[{"hello": "world"}]' : "hello";
  const token = needsToken ? ', token=os.environ["PENSTOCK_TOKEN"]' : "";
  const value = stream.isJson ? '{"hello": "world"}' : stream.isText ? '"hello"' : 'b"hello"';
  const options = needsToken ? ", { headers }" : "";
  const headers = needsToken
    ? "const headers = { Authorization: `Bearer ${process.env.PENSTOCK_TOKEN}` };\n"
    : "";
  const type = `"Content-Type": ${quote(stream.contentType)}`;
  return [
    ["curl", "Read", `curl -sS${header} ${shellQuote(`${address}?offset=-1`)}`],
    ["curl", "Follow live", `curl -sSN${header} ${shellQuote(`${address}?offset=now&live=sse`)}`],
    [
      "curl",
      "Append",
      `curl -sS -X POST${header} -H ${shellQuote(`Content-Type: ${stream.contentType}`)} -d ${shellQuote(body)} ${shellQuote(address)}`,
    ],
    [
      "Python",
      "Read",
      `${needsToken ? "import os\n\n" : ""}import penstock\n\nwith penstock.Client(${quote(server)}${token}) as client:\n    stream = client.stream(${quote(stream.path)})\n    ${stream.isJson ? "for message in stream.read().messages:\n        print(message)" : "print(stream.read_bytes())"}`,
    ],
    [
      "Python",
      "Follow live",
      `${needsToken ? "import os\n\n" : ""}import penstock\n\nwith penstock.Client(${quote(server)}${token}) as client:\n    with client.stream(${quote(stream.path)}).follow() as batches:\n        for batch in batches:\n            print(${stream.isJson ? "batch.messages" : "batch.data"})`,
    ],
    [
      "Python",
      "Append",
      `${needsToken ? "import os\n\n" : ""}import penstock\n\nwith penstock.Client(${quote(server)}${token}) as client:\n    client.stream(${quote(stream.path)}).append(${value})`,
    ],
    [
      "JavaScript",
      "Read",
      `${headers}const response = await fetch(${quote(`${address}?offset=-1`)}${options});\nconsole.log(await response.${stream.isJson ? "json" : "text"}());`,
    ],
    [
      "JavaScript",
      "Follow live",
      `${headers}const response = await fetch(${quote(`${address}?offset=now&live=sse`)}${options});\nfor await (const events of response.body.pipeThrough(new TextDecoderStream())) console.log(events);`,
    ],
    [
      "JavaScript",
      "Append",
      `${headers}const answer = await fetch(${quote(address)}, {\n  method: "POST",\n  headers: { ${needsToken ? "...headers, " : ""}${type} },\n  body: ${quote(body)},\n});\nif (!answer.ok) throw new Error(await answer.text());`,
    ],
  ];
}

export function codePanel(stream) {
  return h(
    "div.panel",
    session.principal.open
      ? null
      : h(
          "p.dim",
          "The token is taken from the environment variable PENSTOCK_TOKEN: it is not part of what you copy.",
        ),
    examples(stream).map(([language, title, code]) =>
      h(
        "section.card",
        h("div.page-head", h("h2", `${title} with ${language}`), copyButton(code)),
        h(
          "pre.code",
          {
            tabindex: 0,
            "data-language": language,
            "data-title": title,
            "aria-label": `${title} with ${language}`,
          },
          code,
        ),
      ),
    ),
  );
}
