-- Quarantines a request that cannot be carried out, with the reason, for an operator to look at.
--
-- ARGV[1]  group    ARGV[2]  id of the entry
-- ARGV[3]  approximate number of quarantined requests to keep    ARGV[4]  maximum bytes to keep of one
-- ARGV[5..] field, value, ... that give the reason
-- Returns  1, or 0 when the entry is gone
--! include keys
local entry = redis.call('XRANGE', REQUESTS, ARGV[2], ARGV[2])[1]
redis.call('XACK', REQUESTS, ARGV[1], ARGV[2])
if not entry then return 0 end
local size = 0
for _, part in ipairs(entry[2]) do size = size + #part end
local kept = { 'entry', ARGV[2], unpack(ARGV, 5) }
-- Of a request that is too large only the reason and the size are kept.
if size <= tonumber(ARGV[4]) and #entry[2] <= 200 then
  for _, part in ipairs(entry[2]) do kept[#kept + 1] = part end
else
  kept[#kept + 1] = 'bytes'
  kept[#kept + 1] = whole(size)
end
redis.call('XADD', POISON, 'MAXLEN', '~', ARGV[3], '*', unpack(kept))
return redis.call('XDEL', REQUESTS, ARGV[2])
