-- wrk script: appends of JSON messages of 100 bytes, or reads.
-- Arguments: POST or GET, the path, how many streams to use (path-0, path-1, ...; 1 means the path itself),
-- and how many messages a request appends. A fifth names a file with the paths to use instead, one a line.
-- Up to 64 streams are taken in turn; of more, each request takes one at random, so that most are cold.
local requests, turn = {}, 0

function init(args)
  local method, path, count, messages = args[1], args[2], tonumber(args[3]), tonumber(args[4])
  local body, headers
  if method == "POST" then
    body = '{"n":"' .. string.rep("x", 92) .. '"}'
    if messages > 1 then
      body = "[" .. string.rep(body .. ",", messages - 1) .. body .. "]"
    end
    headers = { ["Content-Type"] = "application/json" }
  end
  math.randomseed(os.time())
  if args[5] then
    for line in io.lines(args[5]) do
      requests[#requests + 1] = wrk.format(method, line, headers, body)
    end
    return
  end
  for i = 1, count do
    requests[i] = wrk.format(method, count == 1 and path or path .. "-" .. (i - 1), headers, body)
  end
end

function request()
  if #requests > 64 then
    return requests[math.random(#requests)]
  end
  turn = turn % #requests + 1
  return requests[turn]
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "seconds": %.4f, "refused": %d, "broken": %d, "p50_us": %d, "p99_us": %d}\n',
    summary.requests, summary.duration / 1e6, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
