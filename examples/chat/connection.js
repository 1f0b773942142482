// A WebSocket for topics that connects again by itself and then subscribes to what it was subscribed to.
//
// What is said while it is away is not heard: these topics have no history. `onStatus` tells when that may have happened.

/** Delays before connecting again: doubled after each failure, and random, so that not all clients come at once. */
const DELAY_MIN = 250
const DELAY_MAX = 10_000

export class Connection {
  #url
  #token
  #onMessage
  #onStatus
  #topics = new Set()
  #socket = null
  #session = null
  #ready = false
  #failures = 0
  #number = 0
  #requests = new Map()
  #timers = []
  #stopped = false

  /**
   * `url`: of the project's topics, such as `http://127.0.0.1:4437/v1/chat/topics`.
   * `token`: an async function with the token to use from now on, or null where the server asks for none.
   * `onMessage(message)`: called with each message of a topic.
   * `onStatus(status, reason)`: called with `online`, `offline` (it comes again) or `closed` (it does not).
   */
  constructor({ url, token = async () => null, onMessage, onStatus }) {
    this.#url = url.replace(/^http/, "ws")
    this.#token = token
    this.#onMessage = onMessage
    this.#onStatus = onStatus
    this.#connect()
  }

  /** Subscribes to exactly these topics, now and whenever the connection is made again. */
  async set(topics) {
    const before = this.#topics
    const wanted = (this.#topics = new Set(topics))
    if (!this.#ready) return
    try {
      await this.request("$set", { topics })
    } catch (error) {
      // What the server refuses now it would refuse again; a lost connection comes again and asks for it.
      if (error.code && this.#topics === wanted) this.#topics = before
      throw error
    }
  }

  /** Publishes a message to all others who subscribe to the topic. Rejects if it is not known to have arrived. */
  async publish(topic, message) {
    const result = await this.request("$publish", { topic, message, excludeSelf: true })
    if (!result.ok) throw new Error(result.error)
    return result
  }

  /** Sends a request, and resolves with the payload of its reply. */
  request(type, payload) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return Promise.reject(new Error("not connected"))
    const correlationId = String(++this.#number)
    return new Promise((resolve, reject) => {
      this.#requests.set(correlationId, { resolve, reject })
      this.#send({ type, meta: { correlationId }, payload })
    })
  }

  /** Closes the connection for good. */
  close() {
    this.#stop("closed by the page")
    this.#socket?.close(1000)
  }

  async #connect() {
    let token
    try {
      token = await this.#token()
    } catch {
      return this.#again("no token")
    }
    if (this.#stopped) return
    const query = new URLSearchParams()
    if (token) query.set("token", token)
    // The server then knows the sender of earlier messages.
    if (this.#session) query.set("session", this.#session)
    const socket = new WebSocket(`${this.#url}?${query}`)
    this.#socket = socket
    let farewell = null
    let heard = Date.now()
    socket.onmessage = ({ data }) => {
      heard = Date.now()
      if (typeof data !== "string") return
      const message = JSON.parse(data)
      if (message.type === "$close") farewell = message.payload
      else if (message.type === "$hello") this.#welcome(message.payload, () => heard)
      else this.#handle(message)
    }
    // A refusal and a lost connection look the same from a page, so it tries again in either case.
    socket.onclose = ({ reason }) => {
      this.#leave()
      if (farewell && !farewell.reconnect && farewell.reason !== "token-expired") this.#stop(farewell.reason)
      else this.#again(farewell?.reason || reason || "connection lost", farewell?.retryAfterMs)
    }
  }

  /** Subscribes again, and only then is online. */
  async #welcome(hello, heard) {
    this.#session = hello.session
    this.#watch(hello.heartbeatMs, heard)
    if (hello.expiresAt) this.#renewBefore(hello.expiresAt)
    const socket = this.#socket
    try {
      let topics
      do {
        topics = this.#topics
        await this.request("$set", { topics: [...topics] })
      } while (topics !== this.#topics)
    } catch (error) {
      // Connecting again would not help: the server refuses a topic. If the connection is lost, it comes again by itself.
      if (socket.readyState === WebSocket.OPEN) {
        this.#stop(error.message)
        socket.close(1000)
      }
      return
    }
    this.#failures = 0
    this.#ready = true
    this.#onStatus("online")
  }

  #handle(message) {
    const { type, meta = {}, payload } = message
    const request = this.#requests.get(meta.correlationId)
    if (type === "$reply" || type === "RPC_ERROR") {
      this.#requests.delete(meta.correlationId)
      if (type === "$reply") request?.resolve(payload)
      else request?.reject(Object.assign(new Error(payload.message), payload))
    } else if (type === "$unsubscribed") {
      for (const topic of payload.topics) this.#topics.delete(topic)
      this.#onStatus("online", `no longer in ${payload.topics.join(", ")}: ${payload.reason}`)
    } else if (type === "ERROR") {
      console.warn("the server refused a message", payload)
    } else if (!type.startsWith("$") && !type.startsWith("__")) {
      this.#onMessage(message)
    }
  }

  /** A page does not see WebSocket pings: it sends heartbeats, and closes a connection on which nothing comes. */
  #watch(every, heard) {
    const socket = this.#socket
    this.#timers.push(
      setInterval(() => {
        if (Date.now() - heard() > 3 * every) socket.close()
        else this.#send({ type: "__heartbeat" })
      }, every),
    )
  }

  /** Sends a new token shortly before the old one expires. */
  #renewBefore(expiresAt) {
    const left = expiresAt - Date.now()
    const delay = Math.min(Math.max(left * 0.8, left - 60_000, 0), 2 ** 31 - 1)
    this.#timers.push(
      setTimeout(async () => {
        try {
          const renewed = await this.request("$auth", { token: await this.#token() })
          if (renewed.expiresAt) this.#renewBefore(renewed.expiresAt)
        } catch (error) {
          // The server ends the connection when the old token expires, and it comes again with a new one.
          console.warn("the token was not renewed", error)
        }
      }, delay),
    )
  }

  #send(message) {
    this.#socket.send(JSON.stringify(message))
  }

  #leave() {
    this.#ready = false
    this.#timers.forEach(clearTimeout)
    this.#timers = []
    for (const { reject } of this.#requests.values()) reject(new Error("connection lost"))
    this.#requests.clear()
  }

  #again(reason, delay) {
    if (this.#stopped) return
    const most = Math.min(DELAY_MIN * 2 ** this.#failures++, DELAY_MAX)
    this.#onStatus("offline", reason)
    setTimeout(() => this.#stopped || this.#connect(), delay ?? most * (0.5 + Math.random() / 2))
  }

  #stop(reason) {
    if (this.#stopped) return
    this.#stopped = true
    this.#onStatus("closed", reason)
  }
}
