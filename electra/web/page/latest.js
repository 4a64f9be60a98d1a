// Only the newest request counts: an older one is aborted, and its answer is dropped.

export class Latest {
  #controller = null;
  #timer = null;

  /** Run a task after a pause, unless another is asked for before. */
  schedule(task, pause) {
    this.stop();
    if (pause === 0) this.#run(task);
    else this.#timer = setTimeout(() => this.#run(task), pause);
  }

  stop() {
    clearTimeout(this.#timer);
    this.#controller?.abort();
  }

  async #run(task) {
    const controller = new AbortController();
    this.#controller = controller;
    try {
      await task(controller.signal);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  }
}
