// Who uses the console, and what they may do. The token is in this variable alone, and gone with the tab.

let listener = () => {};

export const session = {
  token: null,
  /** The document of GET /v1/session; null before anybody has signed in. */
  principal: null,

  /** Call a function when the server does not accept the credentials any more. */
  onEnd(callback) {
    listener = callback;
  },

  ended(error) {
    this.token = null;
    this.principal = null;
    listener(error);
  },
};

/** Whether a rule allows a verb on the canonical path of a stream, or on a resource of the server, `__ds/…`. */
export function may(verb, path) {
  return rulesOf(verb).some((pattern) => allows(pattern, path));
}

/** Whether a rule allows a verb anywhere. */
export function maySomewhere(verb) {
  return rulesOf(verb).length > 0;
}

function rulesOf(verb) {
  return (session.principal?.rules ?? [])
    .map((rule) => [rule.slice(0, rule.indexOf(":")), rule.slice(rule.indexOf(":") + 1)])
    .filter(([name]) => name === "*" || name === verb)
    .map(([, pattern]) => pattern);
}

function allows(pattern, path) {
  const isServer = path === "__ds" || path.startsWith("__ds/");
  if (isServer && pattern !== "__ds" && !pattern.startsWith("__ds/")) return false;
  return matches(pattern.split("/"), path.split("/"));
}

/** As protocol/globs.py: `*` is any text within a segment, `**` any number of segments. */
export function matches(parts, segments) {
  let [at, index, anyAt, consumed] = [0, 0, -1, 0];
  while (index < segments.length) {
    if (at < parts.length && parts[at] === "**") {
      anyAt = at++;
      consumed = index;
    } else if (at < parts.length && fits(parts[at], segments[index])) {
      at += 1;
      index += 1;
    } else if (anyAt >= 0) {
      at = anyAt + 1;
      index = ++consumed;
    } else {
      return false;
    }
  }
  return parts.slice(at).every((part) => part === "**");
}

function fits(part, segment) {
  const pieces = part.split("*");
  if (pieces.length === 1) return part === segment;
  const [first, last] = [pieces[0], pieces.at(-1)];
  if (segment.length < first.length + last.length || !segment.startsWith(first) || !segment.endsWith(last))
    return false;
  let at = first.length;
  for (const piece of pieces.slice(1, -1)) {
    const next = segment.indexOf(piece, at);
    if (next < 0 || next + piece.length > segment.length - last.length) return false;
    at = next + piece.length;
  }
  return true;
}
