/** Something between clients and the server that cuts connections, or lets their bytes vanish. */
import { connect, createServer, type AddressInfo, type Socket } from "node:net"
import { after } from "node:test"

interface Pair {
  sockets: Socket[]
  muted: boolean
  /** What is on its way while the connection is held. */
  held: [to: Socket, data: Buffer][] | undefined
}

export class Proxy {
  readonly #pairs = new Set<Pair>()
  #server = createServer(client => this.#join(client))
  url = ""
  cuts = 0

  private constructor(readonly to: string) {}

  static async start(to: string): Promise<Proxy> {
    const proxy = new Proxy(to)
    await new Promise<void>(resolve => proxy.#server.listen(0, "127.0.0.1", resolve))
    proxy.url = `http://127.0.0.1:${(proxy.#server.address() as AddressInfo).port}`
    after(() => {
      proxy.#server.close()
      proxy.cut()
    })
    return proxy
  }

  /** Number of connections. */
  get size(): number {
    return this.#pairs.size
  }

  /** Cuts all connections, in the middle of whatever they carry. */
  cut(): void {
    this.cuts += this.#pairs.size
    for (const { sockets } of [...this.#pairs]) for (const socket of sockets) socket.destroy()
  }

  /** Lets what all connections carry vanish, in both directions. They stay open: nobody is told. */
  mute(): void {
    this.cuts += this.#pairs.size
    for (const pair of this.#pairs) pair.muted = true
  }

  /**
   * Holds back what all connections carry, and lets it go later, in its order: by then the client has given them up and come
   * again, so that the server hears of the old connection after the new one.
   */
  hold(ms: number): void {
    this.cuts += this.#pairs.size
    for (const pair of [...this.#pairs]) {
      pair.held ??= []
      setTimeout(() => {
        const held = pair.held ?? []
        pair.held = undefined
        for (const [to, data] of held) if (to.writable) to.write(data)
        if (pair.sockets.some(socket => socket.destroyed)) for (const socket of pair.sockets) socket.end()
      }, ms)
    }
  }

  #join(client: Socket): void {
    const { hostname, port } = new URL(this.to)
    const server = connect(Number(port), hostname)
    const pair: Pair = { sockets: [client, server], muted: false, held: undefined }
    this.#pairs.add(pair)
    for (const [from, to] of [[client, server], [server, client]] as const) {
      from.on("data", data => {
        if (pair.held) pair.held.push([to, data])
        else if (!pair.muted) to.write(data)
      })
      from.on("error", () => {})
      from.on("close", () => {
        this.#pairs.delete(pair)
        if (!pair.held) to.destroy()
      })
    }
  }
}
