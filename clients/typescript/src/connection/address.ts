/** Where a project is. */
export interface Target {
  /** URL of the server, such as `https://tidings.example`; a path before `/v1` is kept. */
  server: string | URL
  /** Id of the project. Default: `_default`. */
  project?: string
}

/** URL below `/v1/{project}`. Segments are percent-encoded. */
export function address({ server, project = "_default" }: Target, ...segments: string[]): URL {
  const url = new URL(server)
  if (!/^(https?|wss?):$/.test(url.protocol)) {
    throw new TypeError(`the server must be an http or https URL, not ${String(server)}`)
  }
  url.protocol = url.protocol.replace("ws", "http")
  const encoded = ["v1", project, ...segments].map(segment => {
    // URLs resolve these, also percent-encoded, so no client could reach what they name.
    if (/^\.{0,2}$/.test(segment)) throw new TypeError(`"${segment}" cannot be part of a URL's path`)
    return encodeURIComponent(segment)
  })
  url.pathname = `${url.pathname.replace(/\/+$/, "")}/${encoded.join("/")}`
  url.search = url.hash = ""
  return url
}

/** The same URL for a WebSocket. */
export function socketAddress(url: URL): URL {
  const socket = new URL(url)
  socket.protocol = url.protocol.replace("http", "ws")
  return socket
}
