// The search of the site runs in a worker, which browsers refuse to a page from a folder (file://).
// There a hidden frame takes its place.
if (location.protocol === "file:") {
  const load = (frame, url) =>
    new Promise((resolve, reject) => {
      const script = frame.document.createElement("script");
      Object.assign(script, { src: url, onload: resolve, onerror: reject });
      frame.document.head.append(script);
    });

  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = async (...urls) => {
        for (const url of urls) await load(inner, url);
      };
      this.loaded = load(inner, url).then(() => inner);
    }

    async postMessage(data) {
      const inner = await this.loaded;
      inner.dispatchEvent(new inner.MessageEvent("message", { data }));
    }
  };
}
