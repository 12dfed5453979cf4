-- Appends lifecycle events to the capped event stream, and adds to the counts of the cluster.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  about how many entries the stream keeps
-- ARGV[2]  JSON: list of runs {occasion, ids}; an occasion is {event, task_type, queue, priority, user,
--          attempt, worker, status, details}, details are further fields {name, value, ...};
--          ids are texts, each of one or more ids for one entry; at most 500 ids in all
-- ARGV[3..] name, number, name, number, ...: what to add to the counts
-- Returns  how many entries were appended
--
-- An entry that the server refuses (out of memory, not permitted) is left out: an event is
-- told when that can be done, and whoever tells it has no use for the error.
--! include keys
for i = 3, #ARGV, 2 do redis.pcall('HINCRBY', COUNTERS, ARGV[i], ARGV[i + 1]) end
local t = redis.call('TIME')
local at = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
local appended = 0
for _, run in ipairs(cjson.decode(ARGV[2])) do
  local o = run[1]
  for _, ids in ipairs(run[2]) do
    local entry = redis.pcall('XADD', EVENTS, '*', 'event', o[1], 'task_id', ids, 'task_type', o[2], 'queue', o[3],
      'priority', o[4], 'user', o[5], 'attempt', o[6], 'worker', o[7], 'status', o[8], 'at', at, unpack(o[9]))
    if type(entry) == 'string' then appended = appended + 1 end
  end
end
if appended > 0 then redis.pcall('XTRIM', EVENTS, 'MAXLEN', '~', ARGV[1]) end
return appended
