/** Where a project is. */
export interface Target {
  /** URL of the server, such as `https://tidings.example`; a path before `/v1` is kept. */
  server: string | URL
  /** Id of the project. Default: `_default`. */
  project?: string
}

/** URL below `/v1/{project}`. Segments are percent-encoded. */
export function address({ server, project = "_default" }: Target, ...segments: string[]): URL {
  const base = new URL(server).href.replace(/^ws/, "http").replace(/\/*([?#].*)?$/, "")
  if (!/^https?:/.test(base)) throw new TypeError(`not an http or https URL: ${String(server)}`)
  const encoded = ["v1", project, ...segments].map(segment => {
    // URLs resolve these, also percent-encoded, so no client could reach what they name.
    if (/^\.{0,2}$/.test(segment)) throw new TypeError(`not a part of a URL: "${segment}"`)
    return encodeURIComponent(segment)
  })
  return new URL(`${base}/${encoded.join("/")}`)
}

/** The same URL for a WebSocket. */
export function socketAddress(url: URL): URL {
  return new URL(url.href.replace("http", "ws"))
}
