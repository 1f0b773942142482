// The application: a page, and its todos in PostgreSQL. It knows nothing of tidings but the address that it gives to the
// page. It asks psql, so that the example needs no packages; a project of its own has a driver.
import { spawn } from "node:child_process"
import { readFileSync } from "node:fs"
import { createServer } from "node:http"
import { fileURLToPath } from "node:url"

const here = fileURLToPath(new URL(".", import.meta.url))
const files = { "/": ["index.html", "text/html"], "/todo.js": ["todo.js", "text/javascript"], "/sync.js": ["sync.js", "text/javascript"] }

/** Runs a statement with values for its :'names', and returns the JSON that it selects. */
function sql(statement, values = {}) {
  const names = Object.entries(values).flatMap(([name, value]) => ["-v", `${name}=${value}`])
  const options = ["--no-psqlrc", "-qAt", "-v", "ON_ERROR_STOP=1", ...names, process.env.DATABASE_URL]
  const psql = spawn("psql", options, { stdio: ["pipe", "pipe", "pipe"] })
  psql.stdin.end(statement)
  let [out, error] = ["", ""]
  psql.stdout.on("data", text => (out += text))
  psql.stderr.on("data", text => (error += text))
  return new Promise((resolve, reject) => {
    psql.on("error", reject)
    psql.on("close", code => (code === 0 ? resolve(JSON.parse(out || "null")) : reject(new Error(error))))
  })
}

const row = "json_build_object('id', id, 'text', text, 'done', done)"
const all = `SELECT coalesce(json_agg(${row} ORDER BY created), '[]') FROM todo`
const some = `SELECT coalesce(json_agg(${row} ORDER BY created), '[]') FROM todo WHERE id = ANY (string_to_array(:'ids', ',')::uuid[])`

async function answer(request) {
  const { pathname, searchParams } = new URL(request.url, "http://localhost")
  let body = ""
  for await (const part of request) body += part
  const given = body ? JSON.parse(body) : {}
  const id = pathname.match(/^\/todos\/([0-9a-f-]{36})$/)?.[1]
  switch (`${request.method} ${id ? "/todos/id" : pathname}`) {
    case "GET /config":
      return { sync: process.env.SYNC_URL }
    case "GET /todos":
      return searchParams.has("ids") ? sql(some, { ids: searchParams.get("ids") }) : sql(all)
    case "POST /todos":
      return sql(`INSERT INTO todo (text) VALUES (:'text') RETURNING ${row}`, { text: String(given.text) })
    case "PATCH /todos/id":
      return sql(`UPDATE todo SET done = :'done'::boolean WHERE id = :'id' RETURNING ${row}`, { id, done: given.done === true })
    case "DELETE /todos/id":
      return sql("DELETE FROM todo WHERE id = :'id'", { id })
  }
}

const app = createServer(async (request, response) => {
  const file = request.method === "GET" && files[request.url.split("?")[0]]
  try {
    const [type, body] = file ? [file[1], readFileSync(here + file[0])] : ["application/json", JSON.stringify(await answer(request))]
    response.writeHead(body === undefined ? 404 : 200, { "content-type": type }).end(body)
  } catch (error) {
    response.writeHead(400, { "content-type": "text/plain" }).end(error.message)
  }
})
app.listen(Number(process.env.PORT), "127.0.0.1", () => console.log(`open http://127.0.0.1:${app.address().port}/ in two windows`))
