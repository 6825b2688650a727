// The decoding options of the photo that is shown: two sliders.

import { byId } from "./dom";
import type { DecodingOptions } from "./types";

const DELAY_MS = 220; // until a slider counts as let go
const beam = byId<HTMLInputElement>("beam"), temperature = byId<HTMLInputElement>("temperature");

export class Options {
  private defaults: DecodingOptions = { beam: 3, temperature: 0 };

  /** `onChange` gets null where the options are the model's own. */
  constructor(onChange: (chosen: DecodingOptions | null) => void) {
    let timer = 0;
    const changed = () => onChange(this.chosen);
    for (const input of [beam, temperature]) {
      input.addEventListener("input", () => {
        this.render();
        clearTimeout(timer);
        timer = window.setTimeout(changed, DELAY_MS);
      });
    }
    byId("again").addEventListener("click", changed);
    byId("reset").addEventListener("click", () => {
      this.show(null);
      changed();
    });
  }

  setDefault(size: number): void {
    this.defaults = { beam: size, temperature: 0 };
    beam.max = String(Math.max(10, size));
    this.show(null);
  }

  show(options: DecodingOptions | null): void {
    const { beam: size, temperature: degree } = options ?? this.defaults;
    beam.valueAsNumber = size;
    temperature.valueAsNumber = degree;
    this.render();
  }

  private get chosen(): DecodingOptions | null {
    const chosen = { beam: beam.valueAsNumber, temperature: temperature.valueAsNumber }, { defaults } = this;
    return chosen.beam === defaults.beam && chosen.temperature === defaults.temperature ? null : chosen;
  }

  private render(): void {
    const degree = temperature.valueAsNumber;
    byId("beam-out").textContent = beam.value;
    byId("temperature-out").textContent = degree ? degree.toFixed(1) : "0";
    beam.disabled = degree > 0;
    byId("again").hidden = !degree;
    byId("reset").hidden = !this.chosen;
  }
}
