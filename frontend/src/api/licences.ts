/** The text with the licences of everything that travels along; releases have it, checkouts do not. */
export const LICENCES = `${import.meta.env.BASE_URL}third-party.txt`;

/** Whether it is there: a path that is no file is the page itself. */
export async function hasLicences(signal: AbortSignal): Promise<boolean> {
  const response = await fetch(LICENCES, { method: "HEAD", signal });
  return response.ok && (response.headers.get("content-type") ?? "").startsWith("text/plain");
}
