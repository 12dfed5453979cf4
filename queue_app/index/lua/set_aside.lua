-- Sets a request aside that cannot be carried out, with the reason, for people to look at.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  group              ARGV[2]  id of the entry
-- ARGV[3]  about how many are kept    ARGV[4]  most bytes to keep of one
-- ARGV    then field, value, ... that say why
-- Returns  1, or 0 when the entry is gone
--! include keys
local entry = redis.call('XRANGE', REQUESTS, ARGV[2], ARGV[2])[1]
redis.call('XACK', REQUESTS, ARGV[1], ARGV[2])
if not entry then return 0 end
local size = 0
for _, part in ipairs(entry[2]) do size = size + #part end
local kept = { 'entry', ARGV[2], unpack(ARGV, 5) }
-- A request that is too large to be kept is told by its reason and its size.
if size <= tonumber(ARGV[4]) and #entry[2] <= 200 then
  for _, part in ipairs(entry[2]) do kept[#kept + 1] = part end
else
  kept[#kept + 1] = 'bytes'
  kept[#kept + 1] = string.format('%.0f', size)
end
redis.call('XADD', POISON, 'MAXLEN', '~', ARGV[3], '*', unpack(kept))
return redis.call('XDEL', REQUESTS, ARGV[2])
