// Small helpers for the document.

export function byId<Kind extends HTMLElement = HTMLElement>(id: string): Kind {
  return document.getElementById(id) as Kind;
}

export function make<Name extends keyof HTMLElementTagNameMap>(kind: Name, name = "", text = ""): HTMLElementTagNameMap[Name] {
  const element = document.createElement(kind);
  element.className = name;
  element.textContent = text;
  return element;
}

export const percent = (share: number) => (share < 0.005 ? "under 1%" : `${Math.round(100 * share)}%`);
export const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
export const wait = (milliseconds: number) => new Promise<void>((done) => setTimeout(done, milliseconds));

/** A line with a bar and a number. */
export function row(text: string, share: number): HTMLLIElement {
  const item = make("li"), bar = make("span", "bar");
  bar.style.setProperty("--share", String(share));
  bar.setAttribute("aria-hidden", "true");
  item.append(make("span", "", text), bar, make("span", "number", share < 0.005 ? "<1%" : percent(share)));
  return item;
}
