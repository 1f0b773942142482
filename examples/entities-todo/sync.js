// The part to take into your own page: watches a type of entities, and comes back by itself with what was missed.

/**
 * Calls `changed(changes)` when entities of a type have changed, and `resync()` when nobody knows what was missed and all
 * is to be fetched again: at the beginning, and after a long absence. `status` is told "online" and "offline".
 */
export function watch(url, entityCode, { changed, resync, status }) {
  let cursor // What was heard up to here need not be told again.
  let failures = 0
  const versions = new Map() // A version that is not above the last one is no news.

  function connect() {
    const socket = new WebSocket(url)
    const subscribe = { entityCode, entityIds: [], ...(cursor && { since: cursor }) }
    socket.onopen = () => socket.send(JSON.stringify({ type: "SUBSCRIBE", payload: subscribe }))
    socket.onmessage = ({ data }) => {
      const { type, payload } = JSON.parse(data)
      if (type === "SUBSCRIBED") {
        failures = 0
        status("online")
        // Only now nothing is missed any more between the two.
        if (!cursor) resync()
      }
      if (type === "INVALIDATE") {
        const news = payload.changes.filter(({ entityId, version }) => version > (versions.get(entityId) ?? 0))
        for (const { entityId, version } of news) versions.set(entityId, version)
        if (news.length) changed(news)
      }
      if (type === "RESYNC") {
        versions.clear()
        resync()
      }
      if (type === "ERROR") socket.close()
      // CONNECTED has one, too, but what came before that was not heard yet.
      if (type !== "CONNECTED") cursor = payload.cursor ?? cursor
    }
    socket.onclose = () => {
      status("offline")
      const longest = Math.min(250 * 2 ** failures++, 10_000)
      setTimeout(connect, longest * (0.5 + Math.random() / 2))
    }
  }
  connect()
}
