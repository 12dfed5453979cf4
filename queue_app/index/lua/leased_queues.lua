-- Returns the queues in which tasks hold leases.
--
-- ARGV     queues, at most 1000
--! include keys
local reply = {}
for _, q in ipairs(ARGV) do
  if redis.call('EXISTS', queue_leases_key(q)) == 1 then reply[#reply + 1] = q end
end
return reply
