-- Records how far a rebuild loads the tasks of queues and bands, before it reads them.
--
-- ARGV[1]  number of the generation
-- ARGV[2..] queue, band, score, ...: tasks up to this score may be pushed by anyone, and later ones are left to the rebuild
--          (push.lua); '' for the score: all may be pushed. At most 1000 queues and bands
-- Returns  1, or 0 when the index was lost, another rebuild has begun, or the lanes of a queue changed meanwhile
--! include keys
local generation = redis.pcall('HMGET', GENERATION, 'number', 'run_id', 'reshaped', 'wiping')
if generation[1] ~= ARGV[1] or generation[2] ~= server_run() then return 0 end
if generation[3] and not generation[4] then return 0 end
local left, loaded = {}, {}
for i = 2, #ARGV, 3 do
  local part = ARGV[i] .. '\31' .. ARGV[i + 1]
  if ARGV[i + 2] == '' then
    loaded[#loaded + 1] = part
  else
    left[#left + 1] = part
    left[#left + 1] = ARGV[i + 2]
  end
end
if #left > 0 then redis.call('HSET', LOADING, unpack(left)) end
if #loaded > 0 then redis.call('HDEL', LOADING, unpack(loaded)) end
return 1
