// Values as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const WHOLE = new Intl.NumberFormat("en-US");
const SHORT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

/** 1234567 → "1,234,567" */
export const whole = (value) => (value === null || value === undefined ? "–" : WHOLE.format(value));

/** 1234567 → "1.2M" */
export const short = (value) => (value === null || value === undefined ? "–" : SHORT.format(value));

/** 1536 → "1.5 KiB" */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

/** 12.3 → "12.3/s" */
export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0/s";
  return value < 10 ? `${value.toFixed(value < 1 ? 2 : 1)}/s` : `${short(Math.round(value))}/s`;
}

export const byteRate = (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`);

/** 0.42 → "0.42 ms" */
export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${value.toFixed(value < 10 ? 2 : 0)} ms`;
}

/** 93784 → "1 d 2 h" */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const parts = [];
  for (const [name, size] of [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
    ["s", 1],
  ]) {
    const count = Math.floor(seconds / size);
    if (count > 0) parts.push(`${count} ${name}`);
    seconds -= count * size;
  }
  return parts.slice(0, 2).join(" ") || "0 s";
}

/** An RFC 3339 time → "2027-01-15 08:00:00" in the zone of the reader. */
export function time(text) {
  if (!text) return "–";
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return String(text);
  const two = (value) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** An RFC 3339 time → "3 min ago" */
export function ago(text, now = Date.now()) {
  if (!text) return "–";
  const seconds = (now - new Date(text).getTime()) / 1000;
  if (seconds < 1) return "now";
  return `${duration(seconds).split(" ").slice(0, 2).join(" ")} ago`;
}

/** "one message", "2,000 messages" */
export function count(number, noun, nouns = `${noun}s`) {
  return `${whole(number)} ${number === 1 ? noun : nouns}`;
}

/** The canonical path of a stream, as a person would write it: escapes are decoded where that is unambiguous. */
export function pathText(path) {
  return path
    .split("/")
    .map((segment) => {
      try {
        const text = decodeURIComponent(segment);
        return text.includes("/") ? segment : text;
      } catch {
        return segment;
      }
    })
    .join("/");
}

/** The canonical path of what a person has written; slashes separate segments. */
export function canonicalPath(text) {
  return text
    .replace(/^\/+|\/+$/g, "")
    .split("/")
    .map((segment) =>
      encodeURIComponent(segment.toWellFormed()).replace(
        /%(21|24|26|27|28|29|2A|2B|2C|3B|3D|3A|40)/g,
        decodeURIComponent,
      ),
    )
    .join("/");
}
