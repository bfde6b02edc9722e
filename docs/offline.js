// Search runs in a worker, and browsers start none for pages that are opened as files. There it runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.addEventListener("load", () => this.begin(new URL(address, location.href).href), { once: true });
      document.body.appendChild(this.frame);
    }

    begin(address) {
      const inside = this.frame.contentWindow;
      if (!inside) return; // it was ended before it began
      inside.postMessage = (data) => this.onmessage && this.onmessage({ data });
      const script = inside.document.createElement("script");
      script.src = address;
      script.onload = () => {
        this.inside = inside;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      };
      script.onerror = (error) => this.onerror && this.onerror(error);
      inside.document.body.appendChild(script);
    }

    postMessage(data) {
      if (this.inside) setTimeout(() => this.inside && this.inside.onmessage({ data }));
      else this.waiting.push(data);
    }

    terminate() {
      this.inside = undefined;
      this.frame.remove();
    }
  };
}
