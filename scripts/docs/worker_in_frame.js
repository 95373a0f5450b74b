// SPDX-License-Identifier: MIT
// The search of the site runs in a Worker, which browsers refuse to pages that were opened from a disk. There the worker's script
// runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.appendChild(frame);
      this.inner = frame.contentWindow;
      const deliver = (data) => {
        const event = new MessageEvent("message", {data});
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      this.inner.postMessage = (data) => setTimeout(() => deliver(data));
      this.inner.importScripts = (...urls) => Promise.all(urls.map((each) => this.load(new URL(each, url).href)));
      this.ready = this.load(new URL(url, location).href);
    }
    load(url) {
      return new Promise((done, failed) => {
        const script = this.inner.document.createElement("script");
        script.src = url;
        script.onload = done;
        script.onerror = failed;
        this.inner.document.documentElement.appendChild(script);
      });
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", {data})));
    }
    terminate() {}
  };
}
