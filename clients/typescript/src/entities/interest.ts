/** Ids of a type that are watched, with the number of watchers. `undefined` is the whole type. */
export type EntityId = string | undefined

/** A request that makes the server have what is wanted. */
export type Step =
  | { type: "SUBSCRIBE"; entityCode: string; ids: EntityId[] }
  | { type: "UNSUBSCRIBE"; entityCode: string; ids: EntityId[] }

/** What is watched, beside what the server was told. Knows no network. */
export class Interest {
  readonly #wanted = new Map<string, Map<EntityId, number>>()
  readonly #sent = new Map<string, Set<EntityId>>()

  _add(entityCode: string, ids: Iterable<EntityId>): void {
    const wanted = this.#wanted.get(entityCode) ?? new Map<EntityId, number>()
    this.#wanted.set(entityCode, wanted)
    for (const id of ids) wanted.set(id, (wanted.get(id) ?? 0) + 1)
  }

  _remove(entityCode: string, ids: Iterable<EntityId>): void {
    const wanted = this.#wanted.get(entityCode)
    if (!wanted) return
    for (const id of ids) {
      const count = (wanted.get(id) ?? 0) - 1
      if (count > 0) wanted.set(id, count)
      else wanted.delete(id)
    }
    if (wanted.size === 0) this.#wanted.delete(entityCode)
  }

  /** Removes an id for all its watchers: the server refuses it. */
  _refuse(entityCode: string, id: EntityId): void {
    this.#wanted.get(entityCode)?.delete(id)
    this.#sent.get(entityCode)?.delete(id)
  }

  _wants(entityCode: string): boolean {
    return this.#wanted.has(entityCode)
  }

  get _empty(): boolean {
    return this.#wanted.size === 0
  }

  /** A new connection: the server knows nothing. */
  _disconnected(): void {
    this.#sent.clear()
  }

  /** The server does not have anything of the type, whatever was sent. */
  _forget(entityCode: string): void {
    this.#sent.delete(entityCode)
  }

  /** The requests to send now; afterwards they count as sent. */
  _steps(): Step[] {
    const steps: Step[] = []
    for (const entityCode of new Set([...this.#sent.keys(), ...this.#wanted.keys()])) {
      const wanted = this.#wanted.get(entityCode) ?? new Map<EntityId, number>()
      let sent = this.#sent.get(entityCode) ?? new Set<EntityId>()
      const leave = [...sent].filter(id => !wanted.has(id))
      // To leave the whole type is to leave all of it.
      const all = leave.includes(undefined)
      if (leave.length > 0) steps.push({ type: "UNSUBSCRIBE", entityCode, ids: all ? [undefined] : leave })
      if (all) sent = new Set()
      const join = [...wanted.keys()].filter(id => !sent.has(id))
      if (join.includes(undefined)) steps.push({ type: "SUBSCRIBE", entityCode, ids: [undefined] })
      const single = join.filter(id => id !== undefined)
      if (single.length > 0) steps.push({ type: "SUBSCRIBE", entityCode, ids: single })
      if (wanted.size > 0) this.#sent.set(entityCode, new Set(wanted.keys()))
      else this.#sent.delete(entityCode)
    }
    return steps
  }
}
