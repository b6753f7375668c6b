/** Files out of the page and into it. */

/** Offers a text to be saved. */
export function saveFile(name: string, text: string, type: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  // The browser needs the address until the download has begun.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Lets the user choose files; empty if none was chosen. */
export function chooseFiles(accept: string, multiple: boolean): Promise<File[]> {
  return new Promise((done) => {
    const input = document.createElement("input");
    input.type = "file";
    input.accept = accept;
    input.multiple = multiple;
    input.hidden = true;
    const end = (files: File[]) => {
      input.remove();
      done(files);
    };
    input.onchange = () => end([...(input.files ?? [])]);
    input.oncancel = () => end([]);
    // WebKit forgets an element that stands nowhere while its dialog is open, and the files with it.
    document.body.append(input);
    input.click();
  });
}

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyOldWay(text);
  }
}

/** Pages that came over plain HTTP from another machine have no clipboard of the new kind. */
function copyOldWay(text: string): boolean {
  const area = document.createElement("textarea");
  area.value = text;
  area.style.position = "fixed";
  area.style.opacity = "0";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
